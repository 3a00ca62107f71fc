# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
#
# source code-interpreter-env.sh LANGUAGE [VERSION]: selects a version of python, java, node or go; without VERSION it lists what there is. This
# image has one version of each: that one is accepted ("3", "3.11" and "3.11.2" all mean Python 3.11.2), any other is refused.

# prints the version that this image has of LANGUAGE, nothing if it has none
code_interpreter_version() {
	case $1 in
	python) python3 -c 'import platform; print(platform.python_version())' ;;
	java) java -version 2>&1 | sed -nE '1s/.*version "([0-9.]+).*/\1/p' ;;
	node) node --version | sed 's/^v//' ;;
	go) go version | sed -nE 's/.* go([0-9.]+).*/\1/p' ;;
	*) return 2 ;;
	esac 2>/dev/null
}

code_interpreter_select() {
	local have want=${2:-}
	case ${1:-} in
	python | java | node | go) ;;
	*)
		echo "usage: source code-interpreter-env.sh python|java|node|go [VERSION]" >&2
		return 2
		;;
	esac
	have=$(code_interpreter_version "$1")
	if [ -z "$have" ]; then
		echo "code-interpreter: this image has no $1${want:+, so it cannot select version $want}. Use another image." >&2
		return 1
	fi
	if [ -z "$want" ]; then
		echo "Available $1 versions:"
		echo "$have"
		return 0
	fi
	want=${want#v}
	case $have. in
	"$want".*) echo "Switched to $1 $have" ;;
	*)
		echo "code-interpreter: $1 $want was requested. This image has $1 $have only. Leave ${1^^}_VERSION out, or set it to $have." >&2
		return 1
		;;
	esac
}

code_interpreter_select "$@"
