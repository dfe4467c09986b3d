"""docs/hami-values.md names every value of HAMi's chart, and nothing here that is not there."""

import re
from pathlib import Path
from typing import Final

from manifests.settings import SETTINGS, given, rendered

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = (DOCS / "hami-values.md").read_text(encoding="utf-8")
GUIDE: Final = (DOCS / "from-hami.md").read_text(encoding="utf-8")
CODE: Final = re.compile(r"`([^`]+)`")

_IMAGE: Final = ("registry", "repository", "tag", "pullPolicy", "pullSecrets")
# The names in the chart's values.yaml, those of whole blocks with `.*` where the block is the plugin's or a Job's.
VALUES: Final = (
    *(f"global.{name}" for name in ("imageRegistry", "imagePullSecrets", "imageTag", "gpuHookPath", "labels")),
    *("global.annotations", "global.managedNodeSelectorEnable", "global.managedNodeSelector.usage"),
    *("nameOverride", "fullnameOverride", "namespaceOverride", "platform.openshift", "podSecurityPolicy.enabled"),
    *("openshift.securityContextConstraints.create", "selinux.enabled", "selinux.type", "selinux.level"),
    *("resourceName", "resourceMem", "resourceMemPercentage", "resourceCores", "resourcePriority"),
    *("mluResourceName", "mluResourceMem", "mluResourceCores"),
    *("dcuResourceName", "dcuResourceMem", "dcuResourceCores"),
    *("hcuResourceName", "hcuResourceMem", "hcuResourceCores"),
    *("metaxResourceName", "metaxResourceCore", "metaxResourceMem", "metaxsGPUTopologyAware"),
    *("enflameResourceNameDRSGCU", "enflameResourceNameGCUMemory", "enflameResourceNameGCUCore"),
    *("kunlunResourceName", "kunlunResourceVCountName", "kunlunResourceVMemoryName"),
    *("vastaiResourceName", "birenResourceName", "schedulerName", "legacyMetrics", "prometheus.enabled"),
    *("device-config.content", "devices.nvidia.gpuCorePolicy", "devices.nvidia.libCudaLogLevel"),
    *(
        f"devices.{family}.customresources"
        for family in ("amd", "awsneuron", "kunlun", "enflame", "mthreads", "vastai", "biren", "ascend", "iluvatar")
    ),
    *(f"devices.{family}.enabled" for family in ("kunlun", "enflame", "mthreads", "vastai", "biren", "iluvatar")),
    *(
        f"devices.ascend.{name}"
        for name in ("enabled", "image", "imagePullPolicy", "extraArgs", "nodeSelector", "tolerations")
    ),
    *("devices.ascend.runtimeClassName", "devices.ascend.hamiVnpuCore", "devices.mthreads.memoryPerCard"),
    *(
        f"scheduler.{name}"
        for name in (
            *("nodeName", "nodeLabelSelector", "overwriteEnv", "metricsBindAddress", "kubeQPS", "kubeBurst"),
            *("kubeTimeout", "nodeLockRetryTimeout", "extenderHTTPTimeout", "forceOverwriteDefaultScheduler"),
            *("livenessProbe", "leaderElect", "replicas", "podDisruptionBudget.minAvailable", "nodeLockExpire"),
            *("podAnnotations", "tolerations", "nodeSelector", "serviceAccountName", "strategy"),
            *("defaultSchedulerPolicy.nodeSchedulerPolicy", "defaultSchedulerPolicy.gpuSchedulerPolicy"),
            *("kubeScheduler.enabled", "kubeScheduler.resources", "kubeScheduler.extraNewArgs"),
            *("kubeScheduler.extraArgs", "extender.resources", "extender.extraArgs"),
            *(f"kubeScheduler.image.{part}" for part in _IMAGE),
            *(f"extender.image.{part}" for part in _IMAGE),
            *(
                f"admissionWebhook.{part}"
                for part in (
                    *("enabled", "customURL.enabled", "customURL.host", "customURL.port", "customURL.path"),
                    *("whitelistNamespaces", "manageNamespaceSelector", "namespaceSelector.matchLabels"),
                    *("namespaceSelector.matchExpressions", "objectSelector.matchExpressions"),
                    *("reinvocationPolicy", "failurePolicy"),
                )
            ),
            *("certManager.enabled", "patch.enabled", "patch.runAsUser", "patch.priorityClassName"),
            *(f"patch.image.{part}" for part in _IMAGE),
            *(f"patch.imageNew.{part}" for part in _IMAGE),
            *(
                f"service.{part}"
                for part in (
                    *("type", "httpPort", "schedulerPort", "monitorPort", "monitorTargetPort", "httpTargetPort"),
                    *("labels", "annotations"),
                )
            ),
            "networkPolicy.enabled",
        )
    ),
    *(
        f"devicePlugin.{name}"
        for name in (
            *("deviceSplitCount", "deviceMemoryScaling", "deviceCoreScaling", "preConfiguredDeviceMemory"),
            *("enableNumaTopology", "runtimeClassName", "createRuntimeClass", "migStrategy", "disablecorelimit"),
            *("passDeviceSpecsEnabled", "deviceListStrategy", "nodeConfiguration.config", "monitor.ctrPath"),
            *("nvidiaNodeSelector", "pluginPath", "libPath", "service.type", "updateStrategy.type"),
        )
    ),
    *("mockDevicePlugin.enabled", "mockDevicePlugin.image.tag"),
)


def rows() -> list[tuple[list[str], str]]:
    """What a row maps, and where to."""
    cells = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    return [(CODE.findall(names), here) for names, here in cells]


def test_every_value_is_mapped() -> None:
    named = {name for names, _ in rows() for name in names}
    blocks = tuple(name.removesuffix("*") for name in named if name.endswith(".*"))
    assert [value for value in VALUES if value not in named and not value.startswith(blocks)] == []


def test_nothing_is_mapped_twice_or_made_up() -> None:
    named = [name for names, _ in rows() for name in names]
    assert len(named) == len(set(named))
    known = (
        set(VALUES)
        | {f"{head}.*" for value in VALUES for head in (value.rpartition(".")[0], value.split(".", maxsplit=1)[0])}
        | {f"{'.'.join(value.split('.')[:2])}.*" for value in VALUES}
    )
    assert set(named) - known == set()


def test_every_value_has_an_answer() -> None:
    for names, here in rows():
        mapped = CODE.findall(here)
        assert mapped or "not needed: " in here or "lugin's" in here or "not here" in here, names


# In the second column, but no setting: values of settings, an overlay, a key of the configuration, and what names are made of.
WORDS: Final = {"ha", "own", "cert-manager", "runtimeClassName", "slotwise-…"}


def test_every_setting_exists() -> None:
    named = {name for _, here in rows() for name in CODE.findall(here)} - WORDS
    assert named - set(SETTINGS) == set()
    assert len(named) > 50


SHELL: Final = re.compile(r"```sh\n(.*?)```", re.DOTALL)


def test_the_commands_of_the_guide_render() -> None:
    played = 0
    for block in SHELL.findall(GUIDE):
        for line in block.replace("\\\n", " ").splitlines():
            if line.startswith("slotwise manifests "):
                overlay, pairs = line.split()[2], re.findall(r"--set (\S+)", line)
                assert rendered(overlay, given(pairs)).documents
                played += 1
    assert played >= 2


def test_values_of_the_chart_in_the_guide_are_the_chart_s() -> None:
    named = set(re.findall(r"`?(scheduler(?:\.\w+)+)[=`]", GUIDE))
    known = set(VALUES) | {value.rpartition(".")[0] for value in VALUES}
    assert named
    assert named - known == set()
