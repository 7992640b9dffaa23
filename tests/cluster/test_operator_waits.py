"""What takes minutes of waiting; it is begun while other modules' tests run (`lost_node` of the conftest)."""

from concurrent.futures import Future


def test_a_node_that_is_lost_is_known_late_and_not_counted(lost_node: "Future[None]") -> None:
    lost_node.result()
