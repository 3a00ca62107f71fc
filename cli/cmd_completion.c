/* SPDX-License-Identifier: Apache-2.0
 *
 * cmd_completion.c: `mayfly completion bash|zsh|fish`: a script for the shell. The script asks
 * `mayfly --help` for commands and options, so there is no second list of them.
 */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

/* Words that may stand at the end of the line `mayfly A B ... <Tab>`: _mayfly_words A B ...
 * The daemon's answer is hostile: only plain names are offered, and nobody waits for it longer than 5 s.
 * An option is the first word of its line, after its letter: its description may name others. */
static const char words[] =
	"_mayfly_words() {\n"
	"    set -- \"$(mayfly ${1+\"$1\"} --help 2>/dev/null)\" \"$@\"\n"
	"    case \"$# $1\" in\n"
	"    [01]\\ *|2\\ *) ;;\n"
	"    *\"usage: mayfly $2 COMMAND ...\"*)\n"
	"        set -- \"$(mayfly \"$2\" \"$3\" --help 2>/dev/null)\" ;;\n"
	"    esac\n"
	"    printf '%s\\n' \"$1\" | sed -n -e 's/^  \\([a-z][a-z-]*\\) .*/\\1/p' "
	"-e 's/^      \\(--[a-z][a-z-]*\\).*/\\1/p' -e 's/^  -., \\(--[a-z][a-z-]*\\).*/\\1/p'\n"
	"    case $1 in\n"
	"    *[\\ \\[]SANDBOX*) timeout 5 mayfly ls --quiet --names 2>/dev/null | "
	"grep -x '[A-Za-z0-9._-]*' ;;\n"
	"    esac\n"
	"}\n";

/* Without `compgen -W`, which would run what a name has between $( and ). */
static const char bash[] =
	"_mayfly() {\n"
	"    local word\n"
	"    COMPREPLY=()\n"
	"    while IFS= read -r word; do\n"
	"        [[ $word != \"${COMP_WORDS[COMP_CWORD]}\"* ]] || COMPREPLY+=(\"$word\")\n"
	"    done < <(_mayfly_words \"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n"
	"}\n"
	"complete -o default -F _mayfly mayfly\n";

/* Sourced, or found as a file _mayfly that zsh loads at the first completion. */
static const char zsh[] = "_mayfly() {\n"
			  "    compadd -- ${(f)\"$(_mayfly_words ${words[2,CURRENT-1]})\"}\n"
			  "    _files\n"
			  "}\n"
			  "if [ \"$funcstack[1]\" = _mayfly ]; then\n"
			  "    _mayfly \"$@\"\n"
			  "else\n"
			  "    compdef _mayfly mayfly\n"
			  "fi\n";

static const char fish[] = "function __mayfly_words\n"
			   "    set -l line (commandline -opc)\n"
			   "    set -e line[1]\n"
			   "    sh -c \"$__mayfly_sh\"'_mayfly_words \"$@\"' mayfly $line\n"
			   "end\n"
			   "complete -c mayfly -a '(__mayfly_words)'\n";

static void print_fish(void)
{
	/* in single quotes of fish, a backslash and a quote want a backslash */
	fputs("set -g __mayfly_sh '", stdout);
	for (const char *p = words; *p; p++) {
		if (*p == '\\' || *p == '\'')
			putchar('\\');
		putchar(*p);
	}
	printf("'\n%s", fish);
}

int cmd_completion(int argc, char **argv)
{
	static const char usage[] =
		"mayfly completion bash|zsh|fish\n\nPrint a script that completes commands, "
		"options "
		"and sandboxes:\n  bash: source <(mayfly completion bash)\n  zsh:  source <(mayfly "
		"completion zsh)\n  fish: mayfly completion fish | source";
	bool json;
	int rest, rc = plain_options(argc, argv, usage, &json, &rest);

	if (rc >= 0)
		return rc;
	if (rest < argc && !strcmp(argv[rest], "bash"))
		printf("%s%s", words, bash);
	else if (rest < argc && !strcmp(argv[rest], "zsh"))
		printf("#compdef mayfly\n%s%s", words, zsh);
	else if (rest < argc && !strcmp(argv[rest], "fish"))
		print_fish();
	else {
		fprintf(stderr, "usage: %s\n", usage);
		return EXIT_USAGE;
	}
	return EXIT_OK;
}
