"""Warnings stay within what the API server passes on, and name the policies that exist."""

from scheduler.policies import CARD_POLICIES, FILTER_WORDS, NODE_POLICIES
from tests.webhook.builders import Cluster, card
from webhook.advice import CARD_POLICY_WORDS, NODE_POLICY_WORDS, Advice


def test_each_once_in_order() -> None:
    advice = Advice()
    for text in ("b", "a", "b"):
        advice.add(text)
    assert advice.texts() == ("b", "a")


def test_a_long_one_is_cut_and_control_characters_are_blanked() -> None:
    advice = Advice()
    advice.add("x\r\nSet-Cookie: y" + "z" * 500)
    (text,) = advice.texts()
    assert text.startswith("x  Set-Cookie: yzz")
    assert text.endswith("z…")
    assert len(text) == 256


def test_too_many_are_counted() -> None:
    advice = Advice()
    for number in range(100):
        advice.add(f"{number:0100}")
    texts = advice.texts()
    assert texts[-1] == "and 60 more warnings"
    assert len(texts) == 41
    assert sum(map(len, texts)) <= 4096


def test_the_words_are_those_that_the_scheduler_knows() -> None:
    assert set(CARD_POLICY_WORDS) == {*CARD_POLICIES, *FILTER_WORDS}
    assert set(NODE_POLICY_WORDS) == set(NODE_POLICIES)


def test_most_cards_follows_the_nodes() -> None:
    cluster = Cluster()
    assert cluster.ledger.most_cards("NVIDIA") == 0
    cluster.node("n1", card("a")).node("n2", card("b"), card("c", index=1))
    assert cluster.ledger.most_cards("NVIDIA") == 2
    cluster.ledger.delete_node("n2")
    assert cluster.ledger.most_cards("NVIDIA") == 1
    cluster.node("n1", card("a", mode="mig", count=7))
    assert cluster.ledger.most_cards("NVIDIA") == 7
