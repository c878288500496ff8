"""What the engine knows of live requests, as arrays: no step loops over requests."""

import numpy as np
from numpy.typing import NDArray

from chairlift.plan import PlanView


class RequestTable:
    """Who is who: request ids of slots, slots of rows, and what happened to them so far.

    A slot belongs to one answer of a request from `Scheduler.add` until it ends; then the scheduler
    hands it to another. Entries of ended requests stay until that happens and are harmless: ids are
    never reused, and every command on an ended id is a no-op.
    """

    def __init__(self, *, num_slots: int, num_rows: int) -> None:
        self._id_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._started = np.zeros(num_slots, dtype=np.bool_)
        self._slot_of_row = np.zeros(num_rows, dtype=np.int32)

    def add(self, slots: list[int], request_id: int) -> None:
        """Takes the answers of a new request into free slots."""
        self._id_of_slot[slots] = request_id
        self._started[slots] = False

    def seat(self, plan: PlanView) -> None:
        """Follows the assignments of rows in a plan."""
        if len(plan.assigned):
            slots = plan.assigned[:, 1]
            self._slot_of_row[plan.assigned[:, 0]] = slots
            self._started[slots] = True

    def request_ids(self, plan: PlanView) -> NDArray[np.int64]:
        """Gives the request of each of the plan's rows, `[R]`; call after `seat`."""
        return self._id_of_slot[self._slot_of_row[plan.rows]]

    def not_started(self) -> list[int]:
        """Gives the requests that never had a row, some that ended before they got one included."""
        ids: list[int] = self._id_of_slot[~self._started & (self._id_of_slot >= 0)].tolist()
        return ids
