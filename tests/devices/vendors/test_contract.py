"""What every accelerator family keeps to, whatever its hardware: one test a promise, over all vendors that are discovered."""

import json
import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.ledger import decode_allocation
from devices.model import NO_CHARGE
from devices.objects import Pod, node_of, pod_of, quota_of
from devices.reasons import NODE_INSUFFICIENT_DEVICE, Reason
from devices.requests import Role, pod_request, roles
from devices.vendor import Bound, Vendor
from scheduler.allocate import carried
from scheduler.ask import Defaults, ask_of
from scheduler.columns import Columns
from scheduler.evaluate import NotFit, evaluate
from scheduler.screen import Screen, needs_of
from tests.builders import Document
from tests.builders import pod as pod_with
from tests.devices.vendors.samples import CONFIG, VENDORS, asking, most, node_document, sample_node, share
from tests.scheduler.builders import World, uuids
from webhook.admission import Admission
from webhook.advice import Advice
from webhook.config import AdmissionSettings
from webhook.mutators import ContainerAdmission
from webhook.patch import PodEdit

KEYS = sorted(VENDORS)
WITH_LISTS = [key for key in KEYS if VENDORS[key].uuid_keys]
REGISTERED = [key for key in KEYS if VENDORS[key].registration]
ITEM = re.compile(r"(\d+)/(\d+) (\w+)")


def world(*vendors: Vendor, **fields: int) -> World:
    return World(sample_node(*(vendors or VENDORS.values()), **fields), config=CONFIG)


def ask(vendor: Vendor, count: int = 1, name: str = "a", **fields: object) -> Pod:
    return pod_with(asking("main", share(vendor, count)), name=name, **fields)  # type: ignore[arg-type] # fields of several types in one mapping


def reasons(text: str, cards: int) -> set[Reason]:
    """The reasons of a refusal, each counted over no more cards than there are (pairs are counted over those asked)."""
    if text == NODE_INSUFFICIENT_DEVICE:
        return set()
    found = [ITEM.fullmatch(item) for item in text.split(", ")]
    assert all(found), text
    for item in found:
        assert item is not None
        assert int(item[1]) <= cards, text
        assert int(item[2]) <= cards, text
    return {Reason(item[3]) for item in found if item is not None}


@pytest.mark.parametrize("key", KEYS)
def test_a_node_says_what_cards_it_has(key: str) -> None:
    vendor = VENDORS[key]
    listed = vendor.read_node(sample_node(vendor))
    assert [card.index for card in listed.cards] == [0, 1, 2, 3]
    assert listed.problems == ()
    assert all(vendor.offers(card) and card.healthy for card in listed.cards)
    assert len({card.uuid for card in listed.cards}) == 4


@pytest.mark.parametrize("key", KEYS)
def test_a_node_without_such_cards_has_none_and_no_problem(key: str) -> None:
    others = world(*(vendor for vendor in VENDORS.values() if vendor.key != key))
    state = others.ledger.state("n1")
    assert state is not None
    assert key not in {found.card.vendor for found in state.cards}
    assert others.ledger.problems_of("n1") == ()


@pytest.mark.parametrize("key", KEYS)
def test_no_card_is_offered_while_nothing_is_allocatable(key: str) -> None:
    vendor = VENDORS[key]
    document = node_document(vendor)
    document["status"]["allocatable"] = {vendor.count_resource: "0"}
    assert World(node_of(document), config=CONFIG).ledger.state("n1") is None


@pytest.mark.parametrize("key", KEYS)
def test_all_families_share_a_node_and_keep_to_their_own_cards(key: str) -> None:
    vendor, everywhere = VENDORS[key], world()
    found = everywhere.filter(ask(vendor))
    assert found.nodes == ("n1",)
    assert found.allocation is not None
    assert [[entry.vendor for entry in entries] for entries in found.allocation] == [[key]]
    assert set(everywhere.held()) == set(uuids(found))


SHAPES = st.lists(st.tuples(st.sampled_from(["init", "sidecar", "app"]), st.booleans()), min_size=1, max_size=5).filter(
    lambda shape: any(kind == "app" for kind, _ in shape) and any(asks for _, asks in shape)
)


def shaped(vendor: Vendor, shape: Sequence[tuple[str, bool]], count: int, name: str = "a") -> Pod:
    """A pod of init containers, sidecars and apps, of which some ask for cards."""
    made: dict[bool, list[Document]] = {True: [], False: []}
    for number, (kind, asks) in enumerate(shape):
        container = asking(f"c{number}", share(vendor, count) if asks else {})
        if kind == "sidecar":
            container["restartPolicy"] = "Always"
        made[kind != "app"].append(container)
    spec = {"initContainers": made[True], "containers": made[False]}
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1"}
    return pod_of({"metadata": metadata, "spec": spec})


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=15, deadline=None)
@given(shape=SHAPES, count=st.integers(1, 2))
def test_what_is_written_is_what_is_read_at_its_containers(key: str, shape: list[tuple[str, bool]], count: int) -> None:
    vendor = VENDORS[key]
    here = world(vendor)
    pod = shaped(vendor, shape, min(count, most(vendor)))
    found = here.filter(pod)
    if found.allocation is None:
        return  # several containers of a pod do not always fit together
    asked = pod_request(pod, [vendor]).containers
    assert [len(entries) for entries in found.allocation] == [
        sum(device.count for device in container.devices) for container in asked
    ]
    extra = carried("n1", found.allocation, CONFIG, pod, here.ledger.state("n1"), 1.0)
    text = extra.annotations[vendor.allocated]
    assert text.count(";") == len(asked)
    if vendor.to_allocate:
        assert extra.annotations[vendor.to_allocate] == text
    bound = pod_of(
        {
            "metadata": {**_metadata(pod), "resourceVersion": "2", "annotations": dict(extra.annotations)},
            "spec": {**_spec(pod), "nodeName": "n1"},
        }
    )
    cards = {card.uuid: card for card in vendor.read_node(sample_node(vendor)).cards}
    decoded = decode_allocation(bound, [vendor])
    assert tuple(tuple(vendor.restored(e, cards[e.uuid]) for e in entries) for entries in decoded) == found.allocation
    before, spent = here.held(), here.ledger.used("default")
    here.ledger.put_pod(bound, 2.0)
    assert here.held() == before
    assert here.ledger.used("default") == spent
    # A process that starts anew and sees the pod before its node counts the same.
    anew = World(config=CONFIG)
    anew.ledger.put_pod(bound, 3.0)
    anew.put_node(sample_node(vendor))
    assert anew.held() == before
    assert anew.ledger.used("default") == spent


def _metadata(pod: Pod) -> Document:
    return {"name": pod.name, "namespace": pod.namespace, "uid": pod.uid}


def _spec(pod: Pod) -> Document:
    def plain(position: int, role: Role) -> Document:
        container = [*pod.init_containers, *pod.containers][position]
        made = asking(container.name, container.limits)
        return {**made, "restartPolicy": "Always"} if role is Role.SIDECAR else made

    found = [(role, plain(position, role)) for position, role in enumerate(roles(pod))]
    return {
        "initContainers": [container for role, container in found if role is not Role.APP],
        "containers": [container for role, container in found if role is Role.APP],
    }


STEPS = st.lists(
    st.tuples(
        st.integers(0, 5),
        st.integers(1, 3),
        st.sampled_from(["binpack", "spread", "mutex", "numa", "topology-aware"]),
        st.booleans(),
    ),
    min_size=1,
    max_size=14,
)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=15, deadline=None)
@given(steps=STEPS)
def test_no_card_ever_gives_more_than_it_has(key: str, steps: list[tuple[int, int, str, bool]]) -> None:
    vendor = VENDORS[key]
    here = World(sample_node(vendor), sample_node(vendor, name="n2"), config=CONFIG)
    living: list[str] = []
    for number, (which, count, policy, ends) in enumerate(steps):
        if ends and living:
            here.ledger.delete_pod(living.pop(which % len(living)))
            continue
        policies = {"hami.io/gpu-scheduler-policy": policy}
        pod = ask(vendor, min(count, most(vendor)), name=f"p{number}", annotations=policies)
        found = here.filter(pod)
        living += [pod.uid] if found.nodes is not None else []
        for text in (found.failed or {}).values():
            reasons(text, 4)
        for node in ("n1", "n2"):
            state = here.ledger.state(node)
            assert state is not None
            for card in state.cards:
                assert not vendor.is_overdrawn(card, vendor.selection({}))
                assert card.free_memory_mib >= 0
                assert Bound.SLOTS not in vendor.bounds or card.used_slots <= card.card.slots


ASKS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["binpack", "mutex"]), st.booleans(), st.sampled_from(["", "0", "3"])),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=15, deadline=None)
@given(asks=ASKS)
def test_screen_and_memory_answer_as_the_evaluator_does(key: str, asks: list[tuple[int, str, bool, str]]) -> None:
    """The same shape comes again and again, also between pods that differ in one input."""
    vendor = VENDORS[key]
    here = World(sample_node(vendor), sample_node(vendor, name="n2"), config=CONFIG)
    for number, (count, policy, whole, index) in enumerate(asks):
        annotations = {"hami.io/gpu-scheduler-policy": policy}
        if index and vendor.uuid_keys:
            annotations[vendor.uuid_keys[0][1]] = ",".join(
                card.uuid for card in vendor.read_node(sample_node(vendor)).cards if str(card.index) == index
            )
        limits = share(vendor, min(count, most(vendor)))
        limits = {vendor.count_resource: limits.get(vendor.count_resource, 1)} if whole else limits
        pod = pod_with(asking("main", limits), name=f"p{number}", annotations=annotations)
        ask_now = ask_of(pod, CONFIG, Defaults(), here.ledger)
        columns = Columns()
        columns.follow(here.ledger)
        may = Screen(needs_of(ask_now, CONFIG)).may_fit(columns)
        states = {name: here.ledger.state(name) for name in ("n1", "n2")}
        exact = {name: evaluate(state, ask_now, CONFIG, {}) for name, state in states.items() if state is not None}
        for name, state in states.items():
            assert state is not None
            assert may[columns.slot_of[name]] or isinstance(exact[name], NotFit)
        found = here.filter(pod)
        assert found.decision is not None
        assert found.decision.complete().verdicts == exact


@pytest.mark.parametrize("key", KEYS)
def test_a_full_node_is_refused_with_counted_reasons_and_given_back_it_fits_again(key: str) -> None:
    vendor, here = VENDORS[key], world(VENDORS[key])
    placed = 0
    while (found := here.filter(ask(vendor, name=f"p{placed}"))).nodes is not None:
        placed += 1
        assert placed <= 4 * 100
    assert found.failed is not None
    assert reasons(found.failed["n1"], 4), found.failed
    for number in range(placed):
        here.ledger.delete_pod(f"uid-p{number}")
    assert here.held() == {}
    assert here.ledger.used("default") == {}
    assert here.filter(ask(vendor, name="again")).nodes == ("n1",)


@pytest.mark.parametrize("key", KEYS)
def test_more_cards_than_there_are(key: str) -> None:
    vendor, here = VENDORS[key], world(VENDORS[key], cards=1)
    if most(vendor) > 1:
        found = here.filter(ask(vendor, 2))
        assert found.failed == {"n1": NODE_INSUFFICIENT_DEVICE}


@pytest.mark.parametrize("key", WITH_LISTS)
def test_lists_of_cards(key: str) -> None:
    vendor = VENDORS[key]
    all_cards = [card.uuid for card in vendor.read_node(sample_node(vendor)).cards]
    for use, nouse in vendor.uuid_keys:
        found = world(vendor).filter(ask(vendor, annotations={use: f" {all_cards[2]} ,"}))
        assert uuids(found) == [all_cards[2]]
        found = world(vendor).filter(ask(vendor, annotations={nouse: ",".join(all_cards[:3])}))
        assert uuids(found) == [all_cards[3]]
        found = world(vendor).filter(ask(vendor, annotations={use: "  ", nouse: " "}))
        assert found.nodes == ("n1",)
        found = world(vendor).filter(ask(vendor, annotations={nouse: ",".join(all_cards)}))
        assert found.failed == {"n1": "4/4 CardUuidMismatch"}


@pytest.mark.parametrize("key", KEYS)
def test_used_quota_is_the_sum_of_what_is_held_and_each_limit_is_kept(key: str) -> None:
    vendor, here = VENDORS[key], world(VENDORS[key])
    total = NO_CHARGE
    for number in range(2):
        found = here.filter(ask(vendor, name=f"p{number}"))
        assert found.allocation is not None
        for entry in (entry for entries in found.allocation for entry in entries):
            total += vendor.price(entry)
    assert here.ledger.used("default") == {key: total}
    one = (total.memory_mib // 2, total.cores // 2, total.cards // 2)
    factor = vendor.memory_factor
    names = (vendor.memory_resource, vendor.core_resource, vendor.count_resource)
    for name, amount in zip(names, (-(-one[0] // factor), one[1], one[2]), strict=True):
        if not name or not amount:
            continue
        hard = {f"limits.{name}": str(2 * amount)}
        here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
        refused = here.filter(ask(vendor, name=f"over {name}"))
        assert refused.failed is not None, name
        assert Reason.QUOTA_NOT_FIT in reasons(refused.failed["n1"], 4), name
        hard = {f"limits.{name}": str(3 * amount)}
        here.ledger.put_quota(quota_of({"metadata": {"name": "q", "namespace": "default"}, "spec": {"hard": hard}}))
        assert here.filter(ask(vendor, name=f"within {name}")).nodes == ("n1",), name
        here.ledger.delete_pod(f"uid-within {name}")


def admission(here: World) -> Admission:
    return Admission(AdmissionSettings(), CONFIG, here.ledger)


def document(*containers: Document, **spec: object) -> Document:
    return {
        "metadata": {"name": "a", "namespace": "default", "uid": "uid-a"},
        "spec": {"containers": list(containers), **spec},
    }


@pytest.mark.parametrize("key", KEYS)
def test_admission_takes_the_pod_and_asked_again_changes_nothing(key: str) -> None:
    vendor, here = VENDORS[key], world(VENDORS[key])
    judge = admission(here)
    first = judge.mutate(document(asking("main", share(vendor))), "default")
    assert first.allowed, first.message
    spec = first.pod["spec"]
    assert isinstance(spec, dict)
    assert spec["schedulerName"] == "hami-scheduler"
    assert judge.mutate(first.pod, "default").patch == []
    assert judge.validate(first.pod, "default").allowed
    admitted = pod_of(first.pod)
    for container in admitted.containers:
        for name, value in container.requests.items():
            assert str(value) == str(container.limits[name])
    assert here.filter(admitted).nodes == ("n1",)


@pytest.mark.parametrize("key", KEYS)
def test_no_container_of_a_device_pod_may_be_privileged(key: str) -> None:
    privileged = {"name": "side", "securityContext": {"privileged": True}}
    given = document(asking("main", share(VENDORS[key])), initContainers=[privileged])
    verdict = admission(world(VENDORS[key])).mutate(given, "default")
    assert not verdict.allowed
    assert verdict.message == "container side is privileged"


@pytest.mark.parametrize("value", [-1, "1500m", "x"])
@pytest.mark.parametrize("key", KEYS)
def test_a_value_that_cannot_be_used_is_denied(key: str, value: object) -> None:
    vendor = VENDORS[key]
    for name in (vendor.count_resource, vendor.memory_resource, vendor.core_resource):
        # Enflame rounds up what has a fraction.
        if name and not (key == "Enflame" and value == "1500m"):
            limits = {**share(vendor), name: value}
            if key == "AWSNeuron" and name == vendor.core_resource:
                limits = {name: value}
            verdict = admission(world(vendor)).drop_in(document(asking("main", limits)), "default")
            assert not verdict.allowed, (name, limits)
            assert verdict.code == 422, (name, verdict.message)


@pytest.mark.parametrize("key", KEYS)
def test_forged_allocations_go_before_they_count(key: str) -> None:
    vendor = VENDORS[key]
    forged = document(asking("main", share(vendor)))
    forged["metadata"]["annotations"] = dict.fromkeys(vendor.protected_annotations, "x")
    assert vendor.allocated in forged["metadata"]["annotations"]
    judge = admission(world(vendor))
    verdict = judge.mutate(forged, "default")
    annotations = pod_of(verdict.pod).annotations
    assert not set(annotations) & set(vendor.protected_annotations)
    assert not judge.validate(
        {**forged, "spec": {**forged["spec"], "schedulerName": "hami-scheduler"}}, "default"
    ).allowed


OTHERS = st.dictionaries(
    st.sampled_from(["cpu", "example.com/gpu", *sorted(CONFIG.resources)]),
    st.sampled_from(["0", "1", "4000"]),
    max_size=3,
)


@pytest.mark.parametrize("key", KEYS)
@settings(max_examples=25, deadline=None)
@given(limits=OTHERS, requests=OTHERS, annotations=st.booleans())
def test_a_container_that_names_nothing_of_it_is_left_alone(
    key: str, limits: dict[str, str], requests: dict[str, str], annotations: bool
) -> None:
    """Admission asks the families that a container names, and no other."""
    vendor = VENDORS[key]
    assert not vendor.changes_other_pods
    theirs = [
        {name: value for name, value in given.items() if name not in vendor.names} for given in (limits, requests)
    ]
    container = {"name": "main", "resources": {"limits": theirs[0], "requests": theirs[1]}, "env": []}
    pod = document(container)
    if annotations:
        pod["metadata"]["annotations"] = dict.fromkeys((*vendor.pod_annotations, *vendor.admission_outputs), "x")
    edit, advice = PodEdit(pod), Advice()
    assert not vendor.admit(ContainerAdmission(edit, ("spec", "containers", 0), advice, world(vendor).ledger))
    assert edit.operations == []
    assert advice.texts() == ()


@pytest.mark.parametrize("key", KEYS)
def test_init_containers_give_back_and_sidecars_stay(key: str) -> None:
    vendor, here = VENDORS[key], world(VENDORS[key])
    pod = shaped(vendor, [("init", True), ("app", False)], 1)
    found = here.filter(pod)
    assert found.allocation is not None
    assert [len(entries) for entries in found.allocation] == [1, 0]
    assert len(here.held()) == 1
    extra = carried("n1", found.allocation, CONFIG, pod, here.ledger.state("n1"), 1.0)
    ended = {"name": "c0", "state": {"terminated": {"exitCode": 0}}}
    running = pod_of(
        {
            "metadata": {**_metadata(pod), "resourceVersion": "2", "annotations": dict(extra.annotations)},
            "spec": {**_spec(pod), "nodeName": "n1"},
            "status": {"phase": "Running", "initContainerStatuses": [ended]},
        }
    )
    here.ledger.put_pod(running, 2.0)
    assert here.held() == {}
    assert here.ledger.used("default") == {}


@pytest.mark.parametrize("key", REGISTERED)
def test_a_malformed_registration_drops_its_own_cards_alone(key: str) -> None:
    vendor, beside = VENDORS[key], VENDORS["GCU" if key != "GCU" else "MLU"]
    given = node_document(vendor, beside)
    annotation = vendor.registration[0]
    whole = given["metadata"]["annotations"][annotation]
    for spoilt in _spoilt(vendor, whole):
        given["metadata"]["annotations"][annotation] = spoilt
        here = World(node_of(given), config=CONFIG)
        state = here.ledger.state("n1")
        assert state is not None
        kept = [found.card for found in state.cards if found.card.vendor == key]
        assert len(kept) == 4, spoilt
        assert here.ledger.problems_of("n1"), spoilt
        assert here.filter(ask(vendor)).nodes == ("n1",)
    for broken in ("", "no list", "{", "null", "5"):
        given["metadata"]["annotations"][annotation] = broken
        here = World(node_of(given), config=CONFIG)
        state = here.ledger.state("n1")
        assert state is not None
        assert {found.card.vendor for found in state.cards} == {beside.key}
        assert any(text.startswith(f"{key}: ") for text in here.ledger.problems_of("n1")), broken


def _spoilt(vendor: Vendor, text: str) -> list[str]:
    """The registration with one more element that cannot be read."""
    if not text.startswith(("[", "{")):
        return [text + more for more in ("a,b:", "x,1,1,1,t,0,perhaps:", "x,1,1,1,t,0,true,-1,m:", "nothing:")]
    listed = json.loads(text)
    items = listed if isinstance(listed, list) else listed["devices"]
    found = []
    for more in ([5], ["card"], [{"index": [], "id": 5, "uuid": 5}], [items[0]]):
        longer = [*items, *more]
        found.append(json.dumps(longer if isinstance(listed, list) else {**listed, "devices": longer}))
    return found


@pytest.mark.parametrize("key", sorted(set(KEYS) - set(REGISTERED)))
def test_a_capacity_that_is_no_number_drops_its_own_cards_alone(key: str) -> None:
    vendor, beside = VENDORS[key], VENDORS["NVIDIA"]
    for broken in ("-1", "1.5", "many", str(2**40)):
        given = node_document(vendor, beside)
        for name in (vendor.count_resource, vendor.core_resource, vendor.memory_resource):
            if name:
                given["status"]["capacity"][name] = broken
        here = World(node_of(given), config=CONFIG)
        state = here.ledger.state("n1")
        assert state is not None
        assert {found.card.vendor for found in state.cards} == {beside.key}, broken
        assert any(text.startswith(f"{key}: ") for text in here.ledger.problems_of("n1")), broken


def test_a_pod_of_several_families_gets_cards_of_each() -> None:
    names = {name: value for vendor in VENDORS.values() for name, value in share(vendor).items()}
    here = world()
    found = here.filter(pod_with(asking("main", names), name="all"))
    assert found.allocation is not None, found
    assert [entry.vendor for entry in found.allocation[0]] == KEYS
    extra = carried("n1", found.allocation, CONFIG, pod_with(name="all"), here.ledger.state("n1"), 1.0)
    assert all(extra.annotations[vendor.allocated].endswith(":;") for vendor in VENDORS.values())


def test_no_two_vendors_have_a_key_in_common() -> None:
    own = [
        key for vendor in VENDORS.values() for key in (vendor.allocated, vendor.to_allocate, vendor.handshake) if key
    ]
    assert len(own) == len(set(own))
    assert len(CONFIG.resources) == sum(len(vendor.resources) for vendor in VENDORS.values())
