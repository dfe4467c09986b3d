"""The renderer: what it does with our kustomizations, and that it ignores nothing."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from manifests.documents import Document, as_yaml, identity, in_order, read_stream
from manifests.errors import ManifestError
from manifests.families import Families
from manifests.kustomize import overlays, render

HEAD = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
COMPONENT = "apiVersion: kustomize.config.k8s.io/v1alpha1\nkind: Component\n"
CONFIG_MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: n}\ndata: {a: x, b: y}\n"
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: n}
spec:
  replicas: 1
  template:
    spec:
      containers:
      - {name: a, image: "a:1", args: [x, y], env: [{name: E, value: e}], ports: [{containerPort: 80, name: http}]}
      - {name: b, image: "b:1"}
"""


def files(root: Path, content: Mapping[str, str]) -> Path:
    for name, text in content.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def rendered(root: Path, kustomization: str, **more: str) -> list[Document]:
    files(root, {"base/kustomization.yaml": HEAD + kustomization, "base/a.yaml": CONFIG_MAP, "base/d.yaml": DEPLOYMENT})
    files(root, {name.replace("__", "/") + ".yaml": text for name, text in more.items()})
    return render("base", Families(), root=root)


def patched(root: Path, patch: str, target: str = "") -> list[Document]:
    item = f"- path: ../p.yaml\n{target}"
    return rendered(root, f"resources: [a.yaml, d.yaml]\npatches:\n{item}", p=patch)


DEPLOYMENT_HEAD = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, namespace: n}\n"
SPEC = "spec: {template: {spec: {containers: %s}}}\n"


def containers(documents: list[Document]) -> list[dict[str, object]]:
    [web] = [document for document in documents if document["kind"] == "Deployment"]
    spec = web["spec"]
    assert isinstance(spec, dict)
    found = spec["template"]["spec"]["containers"]
    assert isinstance(found, list)
    return found


def test_a_patch_merges_mappings_and_removes_what_is_null(tmp_path: Path) -> None:
    found = patched(
        tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: n}\ndata: {a: z, b: null}"
    )
    assert found[0]["data"] == {"a": "z"}


def test_containers_are_merged_by_name_and_new_ones_come_first(tmp_path: Path) -> None:
    change = "[{name: c, image: c}, {name: b, image: 'b:2'}, {name: a, args: [z], env: [{name: F, value: f}]}]"
    found = containers(patched(tmp_path, DEPLOYMENT_HEAD + SPEC % change))
    assert [container["name"] for container in found] == ["c", "a", "b"]
    assert found[1]["args"] == ["z"], "a list of plain texts is replaced"
    assert found[1]["env"] == [{"name": "F", "value": "f"}, {"name": "E", "value": "e"}]
    assert found[2]["image"] == "b:2"


def test_ports_are_merged_by_number(tmp_path: Path) -> None:
    change = "[{name: a, ports: [{containerPort: 80, protocol: TCP}, {containerPort: 81}]}]"
    [first, _] = containers(patched(tmp_path, DEPLOYMENT_HEAD + SPEC % change))
    assert first["ports"] == [{"containerPort": 81}, {"containerPort": 80, "name": "http", "protocol": "TCP"}]


def test_patch_delete_takes_an_element_or_an_object_away(tmp_path: Path) -> None:
    found = containers(patched(tmp_path, DEPLOYMENT_HEAD + SPEC % "[{name: a, $patch: delete}]"))
    assert [container["name"] for container in found] == ["b"]
    left = patched(tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: n}\n$patch: delete")
    assert [document["kind"] for document in left] == ["Deployment"]


def test_patch_replace_forgets_what_was_there(tmp_path: Path) -> None:
    found = patched(
        tmp_path, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: one, namespace: n}\ndata: {$patch: replace, c: z}"
    )
    assert found[0]["data"] == {"c": "z"}


def test_lists_of_custom_resources_are_replaced(tmp_path: Path) -> None:
    custom = "apiVersion: example.com/v1\nkind: Thing\nmetadata: {name: t}\ncontainers: [{name: a}, {name: b}]\n"
    found = rendered(
        tmp_path,
        "resources: [../t.yaml]\npatches: [{path: ../p.yaml}]",
        t=custom,
        p=custom.replace("{name: a}, ", ""),
    )
    assert found[0]["containers"] == [{"name": "b"}]


def test_a_json_patch_reaches_its_target_after_its_own_test(tmp_path: Path) -> None:
    target = "  target: {kind: Deployment, name: web}\n"
    path = "/spec/template/spec/containers/0/args/1"
    patch = f"# why\n- {{op: test, path: {path}, value: y}}\n- {{op: replace, path: {path}, value: z}}"
    assert containers(patched(tmp_path, patch, target))[0]["args"] == ["x", "z"]
    with pytest.raises(ManifestError, match=r"p\.yaml"):
        patched(tmp_path, patch.replace("value: y", "value: other"), target)


def test_a_patch_with_a_target_may_have_any_name(tmp_path: Path) -> None:
    patch = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: whatever, labels: {l: v}}\n"
    [changed, other] = patched(tmp_path, patch, "  target: {kind: ConfigMap}\n")
    assert changed["metadata"] == {"name": "one", "namespace": "n", "labels": {"l": "v"}}
    assert "labels" not in str(other)


def test_replicas_and_labels(tmp_path: Path) -> None:
    found = rendered(
        tmp_path, "resources: [d.yaml]\nreplicas: [{name: web, count: 3}]\nlabels: [{pairs: {team: red}}]\n"
    )
    assert isinstance(found[0]["spec"], dict)
    assert found[0]["spec"]["replicas"] == 3
    assert found[0]["metadata"] == {"name": "web", "namespace": "n", "labels": {"team": "red"}}
    assert "team" not in str(found[0]["spec"])


def test_a_component_changes_what_is_there(tmp_path: Path) -> None:
    component = COMPONENT + "resources: [../../a.yaml]\npatches: [{path: ../../p.yaml}]\n"
    added = rendered(
        tmp_path,
        "resources: [d.yaml]\ncomponents: [../components/c]",
        a=CONFIG_MAP,
        p=DEPLOYMENT_HEAD + "spec: {replicas: 7}",
        components__c__kustomization=component,
    )
    assert [document["kind"] for document in added] == ["Deployment", "ConfigMap"]
    assert isinstance(added[0]["spec"], dict)
    assert added[0]["spec"]["replicas"] == 7
    (tmp_path / "base" / "kustomization.yaml").write_text(HEAD + "resources: [d.yaml]")
    assert render("base", Families(), also=["c"], root=tmp_path) == added


REFUSED = {
    "a key we do not know": ("resources: [a.yaml]\nnamePrefix: x-", "namePrefix: not supported: the renderer knows"),
    "a part of a patch we do not know": (
        "resources: [a.yaml]\npatches: [{path: a.yaml, options: {allowNameChange: true}}]",
        "patches[0]: options: not supported",
    ),
    "a pattern in a target": (
        "resources: [a.yaml]\npatches: [{path: a.yaml, target: {kind: ConfigMap, name: 'o.*'}}]",
        "target: name: 'o.*' is not supported",
    ),
    "a selector in a target": (
        "resources: [a.yaml]\npatches: [{path: a.yaml, target: {labelSelector: a=b}}]",
        "target: labelSelector: not supported",
    ),
    "nothing to patch": ("resources: [d.yaml]\npatches: [{path: a.yaml}]", "nothing to patch: no"),
    "a json patch without a target": (
        "resources: [a.yaml]\npatches: [{patch: '[{op: remove, path: /data}]'}]",
        "a JSON patch needs a target",
    ),
    "replicas of nothing": ("resources: [a.yaml]\nreplicas: [{name: web, count: 2}]", "no Deployment web"),
    "labels in selectors": (
        "resources: [a.yaml]\nlabels: [{pairs: {a: b}, includeSelectors: true}]",
        "includeSelectors: only false is supported",
    ),
    "a file that is not there": ("resources: [b.yaml]", "b.yaml: cannot be read"),
    "a folder without a kustomization": ("resources: [../base/..]", "no kustomization.yaml there"),
    "from the network": ("resources: ['https://example.com/x.yaml']", "expected a path beside this file"),
    "one object twice": ("resources: [a.yaml, ../base/a.yaml]", "ConfigMap n/one is there already"),
    "a key that stands twice": ("resources: [a.yaml]\nresources: [d.yaml]", "key 'resources' stands twice"),
    "a directive": (
        "resources: [a.yaml]\npatches: [{patch: 'apiVersion: v1\n\n  kind: ConfigMap\n\n  metadata: {name: one, namespace: n}\n\n"
        "  data: {$retainKeys: [a]}'}]",
        "data: $retainKeys",
    ),
    "another kind of file": ("resources: [../other]", "expected Kustomization of kustomize.config.k8s.io/v1beta1"),
}


@pytest.mark.parametrize(("kustomization", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_is_beyond_the_subset_is_an_error(tmp_path: Path, kustomization: str, problem: str) -> None:
    with pytest.raises(ManifestError) as caught:
        rendered(tmp_path, kustomization, other__kustomization=COMPONENT)
    assert problem in str(caught.value)


def test_an_overlay_that_is_not_there_names_those_that_are() -> None:
    for name in ("hA", "", "components", ".."):
        with pytest.raises(ManifestError, match=r"no overlay .*: there are base, "):
            render(name, Families())


@pytest.mark.parametrize("overlay", sorted(overlays()))
def test_an_overlay_renders_the_same_every_time_and_survives_its_own_yaml(overlay: str) -> None:
    documents = in_order(render(overlay, Families()))
    assert in_order(reversed(render(overlay, Families()))) == documents
    text = as_yaml(documents)
    assert read_stream(text, overlay) == documents
    assert "&id" not in text, "an anchor is nothing that people expect"
    assert all(line == line.rstrip() for line in text.splitlines()), "such texts cannot be blocks"
    assert len({identity(document, overlay) for document in documents}) == len(documents)


@pytest.mark.parametrize("overlay", sorted(overlays()))
def test_what_others_need_comes_first_and_webhooks_last(overlay: str) -> None:
    kinds = [str(document["kind"]) for document in in_order(render(overlay, Families()))]
    place = {kind: kinds.index(kind) for kind in reversed(kinds)}
    early = [place[kind] for kind in ("ServiceAccount", "ConfigMap", "ClusterRole") if kind in place]
    # The drop-in's is nothing but a Deployment: all else is there, of HAMi.
    assert len(early) == (0 if overlay == "hami-drop-in" else 3)
    assert all(before < place["Deployment"] for before in early)
    if "Namespace" in kinds:
        assert place["Namespace"] == 0
    hooks = [kind for kind in kinds if kind.endswith("WebhookConfiguration")]
    assert not hooks or kinds[-len(hooks) :] == hooks


def test_overlays_say_what_they_are() -> None:
    assert {"base", "ha"} <= set(overlays())
    assert all(text.endswith(".") and os.linesep not in text for text in overlays().values())
