"""torchtitan on Huawei Ascend NPUs: upstream torchtitan, unmodified, with NPU operators where they pay.

Importing this package changes nothing in the process; `entry.py` applies what the run needs.
"""

__version__ = "0.1.0.dev0"
