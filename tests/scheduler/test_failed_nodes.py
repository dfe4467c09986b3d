"""What an answer says of refused nodes, against a dict made node by node."""

import numpy as np
import orjson
from hypothesis import given
from hypothesis import strategies as st

from devices.fit import Refusal
from devices.reasons import NODE_UNREGISTERED, Reason
from scheduler.engine import Filtered
from scheduler.evaluate import NotFit
from scheduler.failed_nodes import FailedNodes
from scheduler.passages import Passages
from scheduler.wire import FilterArgs, encode_filter
from tests.builders import pod

VERDICTS = (
    NotFit("main", Refusal({Reason.CARD_INSUFFICIENT_MEMORY: 2}, 2)),
    NotFit("main", Refusal({Reason.CARD_TYPE_MISMATCH: 2}, 2)),
    NotFit("main", Refusal({}, 1)),
    NotFit("main", Refusal({Reason.CARD_TYPE_MISMATCH: 1, Reason.CARD_CORDONED: 3}, 4)),
)
NAMES = st.text(st.sampled_from('ab",:\\\n{}é\U0001f600'), max_size=4)


@given(st.lists(NAMES, unique=True, max_size=8), st.data())
def test_written_and_read_they_are_the_same(names: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(names)))
    codes = data.draw(st.lists(st.integers(0, len(VERDICTS) - 1), min_size=count, max_size=count))
    known, missing = names[:count], tuple(names[count:])
    array, passages = np.array(known, object), data.draw(st.sampled_from((None, Passages(known))))
    verdicts_of = {code: VERDICTS[code] for code in set(codes)}
    failed = FailedNodes(array, np.array(codes, np.int64), verdicts_of, missing, passages)
    verdicts = {name: VERDICTS[code] for name, code in zip(known, codes, strict=True)}
    texts = {name: verdict.text for name, verdict in verdicts.items()}
    lost = {name: texts[name] for name in known if verdicts[name].is_unresolvable}
    nowhere = dict.fromkeys(missing, NODE_UNREGISTERED)
    expected = {
        "all": {**texts, **nowhere},
        "lost": {**lost, **nowhere},
        "others": {name: text for name, text in texts.items() if name not in lost},
    }
    for what, found in {"all": failed, "lost": failed.unresolvable, "others": failed.resolvable}.items():
        assert list(found.items()) == list(expected[what].items())
        assert len(found) == len(expected[what])
        assert found.json() == orjson.dumps(expected[what])
    filtered = Filtered(failed=failed, unresolvable=failed.unresolvable, outcome="nofit")
    plain = Filtered(failed=expected["all"], unresolvable=expected["lost"], outcome="nofit")
    args = FilterArgs(pod(), tuple(names), None)
    assert orjson.dumps(encode_filter(filtered, args)) == orjson.dumps(encode_filter(plain, args))
