"""What the small model of the tests learns before it is trained: answers of the right form, about one in seven right.

Many small batches get there with fewer demonstrations than the large ones of the demo.
"""

from typing import Final

WARM_START_STEPS: Final = 320
WARM_START_BATCH: Final = 48
