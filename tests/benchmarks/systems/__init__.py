"""Six small systems for which nobody chose any option of training: three of our own, three of BFCL's APIs.

And a booking service behind MCP, and two systems on which options are chosen.
"""

from .booking import BOOKING as BOOKING
from .published import CAR, POSTS, TICKETS
from .system import System
from .tuning import COURIER, PANTRY
from .written import BORROWING, EXPENSES, ROOMS

SYSTEMS: dict[str, System] = {one.name: one for one in (ROOMS, BORROWING, EXPENSES, TICKETS, POSTS, CAR)}
TUNING: dict[str, System] = {one.name: one for one in (COURIER, PANTRY)}
