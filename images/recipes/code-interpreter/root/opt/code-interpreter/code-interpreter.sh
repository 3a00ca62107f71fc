#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# code-interpreter.sh [ARGUMENT...]: starts the Jupyter server behind POST /code, on loopback only. The entrypoint of the code-interpreter images.
# JUPYTER_PORT (44771) and JUPYTER_TOKEN say where it listens and which token it wants. PYTHON_VERSION, JAVA_VERSION, NODE_VERSION and
# GO_VERSION select a version: this image has one of each, and refuses every other. Further arguments go to the Jupyter server.
here=/opt/code-interpreter
for language in python java node go; do
	variable=${language^^}_VERSION
	# shellcheck disable=SC1091 # beside this script
	[ -z "${!variable:-}" ] || . "$here/code-interpreter-env.sh" "$language" "${!variable}" || exit 64
done
# commands that the execution API starts later have the same PATH
if [ -n "${EXECD_ENVS:-}" ]; then
	printf 'PATH=%s\n' "$PATH" >>"$EXECD_ENVS" || echo "code-interpreter: cannot write $EXECD_ENVS" >&2
fi
export JUPYTER_RUNTIME_DIR=${JUPYTER_RUNTIME_DIR:-/var/lib/code-interpreter/runtime}
mkdir -p /workspace "$JUPYTER_RUNTIME_DIR"
cd /workspace || exit
export JUPYTER_TOKEN=${JUPYTER_TOKEN:-opensandboxcodeinterpreterjupyter}
export IPYTHONDIR=${IPYTHONDIR:-/var/lib/code-interpreter/ipython} MPLCONFIGDIR=${MPLCONFIGDIR:-/var/lib/code-interpreter/matplotlib}
exec "$here/server" --ip=127.0.0.1 --port="${JUPYTER_PORT:-44771}" --config=/etc/jupyter/code_interpreter_config.py "$@"
