"""`--set`: every setting has an effect, its default is what the files say, and what is not accepted is refused with all that helps."""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import pytest
import yaml

from devices.config import optional_families
from devices.managed import managed_names
from manifests.check import problems
from manifests.documents import Document, as_yaml
from manifests.errors import ManifestError, SettingError
from manifests.families import Families, shipped_document
from manifests.plan import Plan
from manifests.processes import module_of, scheduler_settings, webhook_settings
from manifests.schemas import load, minors
from manifests.settings import CHECKSUM, SETTINGS, given, rendered

NEEDS: Mapping[str, Mapping[str, str]] = {
    "views-node-port": {"views-service-type": "NodePort"},
    "service-monitor-labels": {"service-monitor": "true"},
}
"""Settings that mean something only with another."""
OF_FAMILIES = [name for name in SETTINGS if name.startswith("device.")]
RENDERED = [name for name in SETTINGS if name not in OF_FAMILIES]


@pytest.fixture(scope="module")
def base() -> Sequence[Document]:
    return rendered("base", {}).documents


def object_of(documents: Sequence[Document], kind: str, name: str) -> dict[str, object]:
    [found] = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]  # type: ignore[index] # a JSON object, whose values have no type of their own
    return found


def container(documents: Sequence[Document], deployment: str, name: str) -> dict[str, object]:
    spec = object_of(documents, "Deployment", deployment)["spec"]
    assert isinstance(spec, dict)
    [found] = [c for c in spec["template"]["spec"]["containers"] if c["name"] == name]
    assert isinstance(found, dict)
    return found


def arguments(documents: Sequence[Document], deployment: str, name: str) -> list[str]:
    found = container(documents, deployment, name)["args"]
    assert isinstance(found, list)
    return found


def kube_scheduler(documents: Sequence[Document]) -> dict[str, object]:
    data = object_of(documents, "ConfigMap", "slotwise-kube-scheduler")["data"]
    assert isinstance(data, dict)
    found = yaml.safe_load(data["kube-scheduler.yaml"])
    assert isinstance(found, dict)
    return found


def meaning(documents: Sequence[Document]) -> Sequence[Document]:
    """The documents, with the settings that their processes read in the place of flags."""
    found = deepcopy(list(documents))
    for document in found:
        if document["kind"] != "Deployment":
            continue
        spec = document["spec"]
        assert isinstance(spec, dict)
        for item in spec["template"]["spec"]["containers"]:
            line = [*item["command"], *item["args"]]
            if module_of(line) == "webhook":
                item["args"] = webhook_settings(line, {})
            elif module_of(line) == "scheduler":
                # Who leads is for the cluster to say, so these are compared as they stand.
                apart = [word for word in line if word.startswith("--leader-elect") and "-margin" not in word]
                item["args"] = (scheduler_settings([word for word in line if word not in apart], {}), apart)
    return found


@pytest.mark.parametrize("name", RENDERED)
def test_the_default_is_what_the_files_say(base: Sequence[Document], name: str) -> None:
    assert meaning(rendered("base", {name: SETTINGS[name].default}).documents) == meaning(base)


@pytest.mark.parametrize("name", OF_FAMILIES)
def test_a_family_s_key_has_its_default_and_changes_that_alone(name: str) -> None:
    _, section, key = name.split(".")
    plan = Plan()
    SETTINGS[name].put(plan, SETTINGS[name].default)
    assert plan.device_config == shipped_document()
    SETTINGS[name].put(plan, SETTINGS[name].example)
    changed, shipped = plan.device_config[section], shipped_document()[section]
    assert isinstance(changed, dict)
    assert isinstance(shipped, dict)
    assert changed.pop(key) != shipped.pop(key)
    assert changed == shipped


@pytest.mark.parametrize("name", [name for name in RENDERED if name != "device-config"])
def test_another_value_makes_a_difference(base: Sequence[Document], name: str) -> None:
    more = NEEDS.get(name, {})
    before = rendered("base", more).documents if more else base
    after = rendered("base", {**more, name: SETTINGS[name].example}).documents
    assert meaning(after) != meaning(before)
    found = [str(problem) for problem in problems(after, load(minors()[0]))]
    assert not found


def test_the_order_on_the_command_line_does_not_matter() -> None:
    pairs = ["namespace=gpu", "pod-labels=a=b", "node-choice=scheduler", "device.nvidia.memoryFactor=4"]
    forward, backward = rendered("ha", given(pairs)), rendered("ha", given(pairs[::-1]))
    assert as_yaml(forward.documents) == as_yaml(backward.documents)


def test_a_namespace_is_renamed_wherever_it_stands() -> None:
    text = as_yaml(rendered("cert-manager", {"namespace": "gpu"}).documents)
    assert "slotwise-system" not in text
    for part in (
        "slotwise-webhook.gpu.svc\n",
        "system:serviceaccount:gpu:slotwise-scheduler",
        "--leader-elect-resource-namespace=gpu",
        "resourceNamespace: gpu",
        "inject-ca-from: gpu/slotwise-webhook",
        "ConfigMap gpu/slotwise-policy",
    ):
        assert part in text
    assert "namespace: kube-system" in text, "the role that kube-scheduler reads is there, wherever Slotwise is"


def test_an_image_whose_name_has_the_namespace_stays_as_given() -> None:
    image = "registry/slotwise-system/slotwise:1"
    documents = rendered("base", {"image": image, "namespace": "gpu"}).documents
    assert container(documents, "slotwise-webhook", "webhook")["image"] == image


def test_a_scheduler_name_reaches_all_who_must_agree() -> None:
    documents = rendered("base", {"scheduler-name": "ours"}).documents
    assert "--scheduler-name=ours" in arguments(documents, "slotwise-webhook", "webhook")
    assert "--scheduler-name=ours" in arguments(documents, "slotwise-scheduler", "extender")
    assert kube_scheduler(documents)["profiles"] == [{"schedulerName": "ours"}]
    policy = object_of(documents, "ConfigMap", "slotwise-policy")["data"]
    assert isinstance(policy, dict)
    assert policy["schedulerNames"] == "ours"
    assert "hami-scheduler" not in as_yaml(documents)


@pytest.mark.parametrize("family", sorted(optional_families()))
def test_an_optional_family_reaches_everything_that_is_generated(base: Sequence[Document], family: str) -> None:
    more = set(managed_names(Families(enabled=(family,)).config)) - set(managed_names(Families().config))
    assert more
    documents = rendered("base", {f"enable-{family}": "true"}).documents
    for deployment, name in (("slotwise-webhook", "webhook"), ("slotwise-scheduler", "extender")):
        assert f"--enable-{family}=true" in arguments(documents, deployment, name)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingWebhookConfiguration", "MutatingWebhookConfiguration"):
        after, before = (json.dumps(object_of(found, kind, "slotwise")) for found in (documents, base))
        assert all(name in after and name not in before for name in more), kind
    extenders = kube_scheduler(documents)["extenders"]
    assert isinstance(extenders, list)
    assert more <= {row["name"] for row in extenders[0]["managedResources"]}


def test_names_of_resources_reach_everything_that_is_generated(tmp_path: Path) -> None:
    file = tmp_path / "devices.yaml"
    file.write_text("nvidia: {resourceCountName: example.com/gpu}\n")
    by_file = rendered("base", {"device-config": str(file)})
    by_key = rendered("base", {"device.nvidia.resourceCountName": "example.com/gpu"})
    assert as_yaml(by_file.documents).count("example.com/gpu") == as_yaml(by_key.documents).count("example.com/gpu") > 4
    assert '"nvidia.com/gpu"' not in as_yaml(by_key.documents)
    mixed = rendered("base", {"device-config": str(file), "device.nvidia.memoryFactor": "4"}).documents
    data = object_of(mixed, "ConfigMap", "slotwise-device-config")["data"]
    assert isinstance(data, dict)
    section = yaml.safe_load(data["device-config.yaml"])["nvidia"]
    assert section["resourceCountName"] == "example.com/gpu"
    assert section["memoryFactor"] == 4


def test_overwriting_the_environment_needs_every_pod() -> None:
    documents = rendered("base", {"device.nvidia.overwriteEnv": "true"}).documents
    hooks = object_of(documents, "MutatingWebhookConfiguration", "slotwise")["webhooks"]
    assert isinstance(hooks, list)
    assert ["matchConditions" in hook for hook in hooks] == [False]


LISTS = {
    "key-writers": ("keyWriters", "changes.slotwise.io", "not-by-a-listed-account"),
    "scheduler-accounts": ("schedulerAccounts", "bindings.slotwise.io", "not-by-a-scheduler"),
}


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize("more", ["", "team:robot"])
def test_accounts_are_listed_alike_in_policy_and_condition(name: str, more: str) -> None:
    parameter, hook_name, condition = LISTS[name]
    documents = rendered("base", {name: more, "namespace": "gpu"}).documents
    policy = object_of(documents, "ConfigMap", "slotwise-policy")["data"]
    hooks = object_of(documents, "ValidatingWebhookConfiguration", "slotwise")["webhooks"]
    assert isinstance(policy, dict)
    assert isinstance(hooks, list)
    accounts = policy[parameter].split(",")
    assert "system:serviceaccount:gpu:slotwise-scheduler" in accounts
    assert ("team:robot" in accounts) == bool(more)
    [hook] = [hook for hook in hooks if hook["name"] == hook_name]
    [row] = [row for row in hook["matchConditions"] if row["name"] == condition]
    assert row["expression"] == f"!(request.userInfo.username in {json.dumps(accounts)})"


def test_pods_are_replaced_when_what_they_read_changes(base: Sequence[Document]) -> None:
    def checksums(documents: Sequence[Document]) -> dict[str, str]:
        found = {}
        for name in ("slotwise-webhook", "slotwise-scheduler"):
            spec = object_of(documents, "Deployment", name)["spec"]
            assert isinstance(spec, dict)
            found[name] = spec["template"]["metadata"]["annotations"][CHECKSUM]
        return found

    before = checksums(base)
    assert (
        checksums(rendered("base", {"retry-period": "1s"}).documents)["slotwise-webhook"] == before["slotwise-webhook"]
    )
    assert (
        checksums(rendered("base", {"retry-period": "1s"}).documents)["slotwise-scheduler"]
        != before["slotwise-scheduler"]
    )
    after = checksums(rendered("base", {"device.nvidia.defaultCores": "5"}).documents)
    assert all(after[name] != before[name] for name in before)
    assert checksums(rendered("base", {"labels": "a=b"}).documents) == before
    after = checksums(rendered("base", {"foreign-schedulers": "volcano"}).documents)
    assert [name for name in before if after[name] != before[name]] == ["slotwise-webhook"], "it is in its environment"


def test_the_image_of_kube_scheduler() -> None:
    def image(**values: str) -> object:
        documents = rendered("base", {name.replace("_", "-"): value for name, value in values.items()}).documents
        return container(documents, "slotwise-scheduler", "kube-scheduler")["image"]

    assert image(kube_version="v1.35.4") == "registry.k8s.io/kube-scheduler:v1.35.4"
    assert image(kube_scheduler_image="mirror:5000/ks") == "mirror:5000/ks:v1.37.2"
    assert image(kube_scheduler_image="mirror:5000/ks:v1.36.0") == "mirror:5000/ks:v1.36.0"
    assert image(kube_scheduler_image="mirror/ks:x", kube_version="1.36.3") == "mirror/ks:v1.36.3"
    digest = f"mirror/ks@sha256:{'a' * 64}"
    assert image(kube_scheduler_image=digest) == digest
    with pytest.raises(ManifestError, match="exclude each other"):
        image(kube_scheduler_image=digest, kube_version="1.36.3")


def test_a_webhook_under_an_address_of_its_own_has_a_certificate_for_it() -> None:
    documents = rendered("base", {"webhook-url": "https://[::1]:31998/x/"}).documents
    hooks = object_of(documents, "ValidatingWebhookConfiguration", "slotwise")["webhooks"]
    assert isinstance(hooks, list)
    assert {hook["clientConfig"]["url"] for hook in hooks} == {"https://[::1]:31998/x/validate"}
    assert not [hook for hook in hooks if "service" in hook["clientConfig"]]
    assert "--cert-hosts=::1" in arguments(documents, "slotwise-webhook", "webhook")


def test_with_cert_manager_the_certificate_names_that_address() -> None:
    for url, key, host in (
        ("https://h.example.com:1", "dnsNames", "h.example.com"),
        ("https://10.0.0.1:1", "ipAddresses", "10.0.0.1"),
    ):
        documents = rendered("cert-manager", {"webhook-url": url}).documents
        spec = object_of(documents, "Certificate", "slotwise-webhook")["spec"]
        assert isinstance(spec, dict)
        assert host in spec[key]
        assert not [text for text in arguments(documents, "slotwise-webhook", "webhook") if "--cert-hosts" in text]


def test_the_life_of_a_certificate_is_ours_only_where_we_make_it() -> None:
    with pytest.raises(ManifestError, match="--set cert-days goes with certificates=own"):
        rendered("cert-manager", {"cert-days": "30"})


def test_a_longer_drain_has_a_longer_grace() -> None:
    spec = object_of(rendered("base", {"webhook-drain-timeout": "1m"}).documents, "Deployment", "slotwise-webhook")[
        "spec"
    ]
    assert isinstance(spec, dict)
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] == 75


def test_cert_manager_takes_the_rights_to_secrets_away() -> None:
    documents = rendered("base", {"certificates": "cert-manager"}).documents
    roles = [object_of(documents, kind, "slotwise-webhook") for kind in ("Role", "ClusterRole")]
    assert not [word for word in ("secrets", "leases", "webhookconfigurations") if word in json.dumps(roles)]
    assert not [
        text for text in arguments(documents, "slotwise-webhook", "webhook") if text.startswith("--cert-secret")
    ]
    assert as_yaml(rendered("cert-manager", {"certificates": "cert-manager"}).documents) == as_yaml(
        rendered("cert-manager", {}).documents
    )


REFUSED = {
    "no pair": ("image", "--set image: expected key=value"),
    "no such key": ("nodelock=auto", "no setting 'nodelock' (did you mean node-lock?): there are image, "),
    "nothing like it": ("zzz=1", "no setting 'zzz': there are image, "),
    "a word that is none": ("node-choice=me", "--set node-choice=me: expected extender or scheduler"),
    "a flag's value": ("node-lock=maybe", "--set node-lock=maybe: --node-lock: 'maybe' is not accepted: expected auto"),
    "a flag's duration": ("node-lock-wait=2", "--set node-lock-wait=2: "),
    "too long for kube-scheduler": ("node-lock-wait=31s", "expected less than the 30 s"),
    "no number": ("webhook-replicas=two", "--set webhook-replicas=two: expected a whole number of 1 or more"),
    "too few": ("webhook-replicas=0", "expected a whole number of 1 or more"),
    "no image": ("image=UPPER CASE", "expected an image such as"),
    "no version": ("kube-version=1.37", "expected a version of Kubernetes with its patch level, such as 1.37.2"),
    "no namespace": ("namespace=Slot_wise", "expected a DNS label"),
    "no resources": ("webhook-resources=cpu=1", "expected requests.NAME=QUANTITY"),
    "no quantity": ("webhook-resources=limits.cpu=1x", "limits.cpu=1x is not accepted"),
    "no toleration": ("tolerations=a:Never", "'a:Never' is no toleration"),
    "no pairs": ("labels=a", "'a' is no pair: expected key=value"),
    "no address": ("webhook-url=http://x", "expected https://host:port"),
    "no port": ("api-server-ports=0", "expected a whole number of 1 or more, at most 65535"),
    "no ports": ("api-server-ports=", "expected at least one port"),
    "no duration": ("lease-duration=soon", "'soon' is not a duration"),
    "a family's number": (
        "device.nvidia.memoryFactor=x",
        "--set device.nvidia.memoryFactor=x: expected a whole number",
    ),
    "a family's own rule": ("device.nvidia.gpuCorePolicy=maybe", "--set device.nvidia.gpuCorePolicy=maybe: "),
    "no such file": ("device-config=/no/such/file", "--set device-config=/no/such/file: "),
    "a port of no kind": ("views-node-port=31993", "goes with views-service-type"),
    "a lease too short": (
        "lease-duration=9s",
        "--set lease-duration=9s: leaderElection.leaseDuration: 9 s is not above",
    ),
    "no time for a retry": (
        "retry-period=9s",
        "--set retry-period=9s: leaderElection.renewDeadline: 10 s is not above",
    ),
    "no monitors": ("service-monitor-labels=a=b", "overlay base has no ServiceMonitor"),
}


@pytest.mark.parametrize(("pair", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_accepted_is_refused(pair: str, text: str) -> None:
    with pytest.raises(ManifestError) as caught:
        rendered("base", given([pair]))
    assert text in str(caught.value)


def test_a_key_twice_is_refused() -> None:
    with pytest.raises(SettingError, match="--set node-lock: given twice, as 'auto' and 'never'"):
        given(["node-lock=auto", "node-lock=never"])


def test_one_resource_for_two_families_is_refused() -> None:
    with pytest.raises(SettingError, match="is used by both"):
        rendered("base", {"device.nvidia.resourceCountName": "amd.com/gpu"})


def test_every_error_about_a_value_says_what_is_accepted() -> None:
    for name in ("node-lock", "image", "webhook-replicas", "device.nvidia.memoryFactor"):
        with pytest.raises(SettingError) as caught:
            rendered("base", {name: "!"})
        assert str(caught.value).endswith(f"accepted: {SETTINGS[name].accepts}")
