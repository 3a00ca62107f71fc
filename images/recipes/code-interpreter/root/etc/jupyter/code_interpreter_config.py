# SPDX-License-Identifier: Apache-2.0
# The Jupyter server of the code-interpreter images. It listens on loopback, its token comes from JUPYTER_TOKEN, and root may run it: the sandbox is
# the wall, not the user.
c = get_config()  # noqa: F821 (Jupyter provides it)
c.ServerApp.allow_root = True
c.ServerApp.open_browser = False
c.ServerApp.root_dir = "/"
c.ServerApp.port_retries = 0
# a cell may print any amount: the reader's own bounds count
c.ZMQChannelsWebsocketConnection.iopub_msg_rate_limit = c.ServerApp.iopub_msg_rate_limit = 0
c.ZMQChannelsWebsocketConnection.iopub_data_rate_limit = c.ServerApp.iopub_data_rate_limit = 0

c.ServerApp.terminals_enabled = False
c.ServerApp.log_level = "WARN"
