"""``python -m weft.doctor``."""

import sys

from weft.doctor import main

sys.exit(main())
