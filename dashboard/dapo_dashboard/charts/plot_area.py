"""Where the plot lies within a chart, in pixels: the pointer that charts share needs to know it too."""

from typing import Final

HEIGHT: Final = 250
LEFT: Final = 50
RIGHT: Final = 14
RIGHT_AXIS: Final = 50
TOP: Final = 34
BOTTOM: Final = 26
# Where the signs of marks stand.
SIGN_TOP: Final = TOP + 3
SIGN_BOTTOM: Final = HEIGHT - BOTTOM - 4
