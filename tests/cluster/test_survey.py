"""Map against states: each row of the table, and which copy is the best."""

from hypothesis import given
from hypothesis import strategies as st

from headwater.cluster.survey import Copy, Settlement, best, chain_with_owner, settle
from headwater.wire.vbucket import State

from .views import A, B, C, D, a_map, survey, view


def test_a_cluster_as_the_map_says_is_settled():
    assert settle(survey(a_map("AB", "BC", "CA"))).is_settled


def test_a_vbucket_that_was_handed_over_is_followed_by_the_map():
    assert settle(survey(a_map("AB"), A="d", B="A", C=".")) == Settlement(handed_over={0: B})


def test_a_takeover_that_was_cut_is_recovered():
    assert settle(survey(a_map("AB"), A="d", B="p", C=".")) == Settlement(cut={0: (A, B)})


def test_a_target_whose_owner_never_stopped_is_made_a_replica_again():
    assert settle(survey(a_map("AB"), A="A", B="p", C=".")) == Settlement(waiting={0: [B]})


def test_a_vbucket_that_nobody_owns_is_promoted_somewhere():
    assert settle(survey(a_map("AB"), A="d", B="r", C="d")) == Settlement(unowned={0: [A, B, C]})
    assert settle(survey(a_map("-B"), A=".", B="p", C=".")) == Settlement(unowned={0: [B]})


def test_a_vbucket_without_a_copy_is_lost():
    assert settle(survey(a_map("A", "AB"), A=". .", B=". r", C=". .")) == Settlement(lost=[0], unowned={1: [B]})


def test_of_two_owners_the_one_in_the_map_stays():
    assert settle(survey(a_map("AB"), A="A", B="A", C=".")) == Settlement(fenced={0: [B]})


def test_two_owners_that_the_map_does_not_know_are_the_operators():
    assert settle(survey(a_map("AB"), A="d", B="A", C="A")) == Settlement(contested={0: [B, C]})


def test_an_outsider_never_becomes_the_owner():
    found = a_map("AB")
    assert settle(survey(found, A="A", D="A")) == Settlement(fenced={0: [D]})
    assert settle(survey(found, A="d", B="r", D="A")) == Settlement(fenced={0: [D]}, unowned={0: [A, B]})


def test_a_survey_knows_who_is_silent_and_the_latest_revision():
    found = a_map("AB")
    told = survey(found, B=view(B, "", found, error="gone"), D=view(D, "A", None, version=(1, 99)))
    assert [node.address for node in told.silent] == [B] and told.latest_rev() == 99
    assert told.nodes[D].has_data and not view(D, "A", None, seqnos=[0]).has_data
    assert told.nodes[A].count(State.ACTIVE) == 1


def test_an_owner_goes_to_the_front_of_its_chain():
    assert chain_with_owner((A, B, C), B) == (B, A, C) and chain_with_owner((A,), D) == (D, A)


def test_the_longest_copy_of_a_history_is_the_best():
    assert best([Copy(A, 5, [(1, 0)]), Copy(B, 9, [(1, 0)]), Copy(C, 9, [(1, 0)])]).address == B


def test_of_copies_that_are_complete_equally_far_the_longest_is_the_best():
    assert best([Copy(A, 9, [(1, 0)], 9), Copy(B, 12, [(1, 0)], 9), Copy(C, 99, [(1, 0)], 8)]).address == B


def test_a_history_that_was_gone_on_from_is_superseded_however_long():
    assert best([Copy(A, 500, [(1, 0)]), Copy(B, 120, [(2, 100), (1, 0)])]).address == B


@given(
    st.permutations([Copy(A, 500, [(1, 0)]), Copy(B, 120, [(2, 100), (1, 0)]), Copy(C, 90, [(3, 80), (2, 70), (1, 0)])])
)
def test_the_best_copy_does_not_depend_on_the_order(copies):
    assert best(copies).address == C


def test_copies_without_a_log_are_judged_by_their_seqnos():
    assert best([Copy(A, 1, ()), Copy(B, 2, ())]).address == B
