"""What the bench on a real control plane refuses before it starts anything; that it measures is shown in tests/cluster."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.bench import app
from lab.bench.cluster import find_programs
from lab.bench.process import BenchError

PROGRAMS = ("etcd", "kube-apiserver", "kube-scheduler")


def folder(at: Path, *names: str, version: str = "1.99.3") -> Path:
    at.mkdir(parents=True)
    for name in names:
        (at / name).write_text(f"#!/bin/sh\necho Kubernetes v{version}\n")
        (at / name).chmod(0o755)
    return at


def test_programs_are_taken_from_the_folders_named(tmp_path: Path) -> None:
    one, other = folder(tmp_path / "a", "etcd"), folder(tmp_path / "b", "kube-apiserver", "kube-scheduler")
    found = find_programs(f"{one}:{other}", {})
    assert (found.etcd, found.scheduler, found.version) == (one / "etcd", other / "kube-scheduler", "1.99.3")


def test_programs_are_taken_from_the_cache_where_no_folder_is_named(tmp_path: Path) -> None:
    folder(tmp_path / "etcd-9", "etcd")
    kubernetes = folder(tmp_path / "kubernetes-9", "kube-apiserver", "kube-scheduler")
    assert find_programs("", {"SLOTWISE_CACHE": str(tmp_path)}).apiserver == kubernetes / "kube-apiserver"


def test_the_newest_version_is_taken_not_the_last_one_built(tmp_path: Path) -> None:
    folder(tmp_path / "etcd-3.7.3", "etcd")
    newest = folder(tmp_path / "kubernetes-1.37.2-go1.26", "kube-apiserver", "kube-scheduler")
    folder(tmp_path / "kubernetes-1.9.4-go1.26", "kube-apiserver", "kube-scheduler")
    assert find_programs("", {"SLOTWISE_CACHE": str(tmp_path)}).scheduler == newest / "kube-scheduler"


def test_the_server_of_a_minor_that_was_just_being_built_ran_beside_another_kube_scheduler(tmp_path: Path) -> None:
    folder(tmp_path / "etcd-9", "etcd")
    kubernetes = folder(tmp_path / "kubernetes-9", "kube-apiserver", "kube-scheduler")
    folder(tmp_path / "kubernetes-8", "kube-apiserver", version="1.98.1")
    assert find_programs("", {"SLOTWISE_CACHE": str(tmp_path)}).apiserver == kubernetes / "kube-apiserver"


def test_programs_of_two_versions_are_refused(tmp_path: Path) -> None:
    one = folder(tmp_path / "a", "etcd", "kube-apiserver")
    other = folder(tmp_path / "b", "kube-scheduler", version="1.98.1")
    with pytest.raises(
        BenchError, match=r"a/kube-apiserver is 1\.99\.3, .*b/kube-scheduler is 1\.98\.1: name a folder"
    ):
        find_programs(f"{one}:{other}", {})


def test_what_is_missing_is_named_with_what_helps(tmp_path: Path) -> None:
    with pytest.raises(
        BenchError, match=r"^kube-apiserver, kube-scheduler not found: name their folders with --programs"
    ):
        find_programs(str(folder(tmp_path / "a", "etcd")), {})


def test_more_pods_than_slots_are_refused(tmp_path: Path) -> None:
    programs = str(folder(tmp_path / "a", *PROGRAMS))
    asked = ["--nodes", "1", "--cards", "1", "--pods", "11", "--programs", programs]
    result = CliRunner().invoke(app, ["cluster", *asked])
    assert result.exit_code == 1
    assert "--pods: 11 do not fit; 1 nodes of 1 cards have 10 slots" in result.stderr
