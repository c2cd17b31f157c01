"""Python imports this by itself when the folder is on PYTHONPATH: in servers, their schedulers, and
workers.
"""

import cpu_shims

cpu_shims.install()
