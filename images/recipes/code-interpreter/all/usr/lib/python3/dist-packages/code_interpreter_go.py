# SPDX-License-Identifier: Apache-2.0
"""A Jupyter kernel for Go. Each cell becomes a program that the real Go toolchain compiles and runs. Declarations (imports, functions, methods, types, constants
and variables) stay for later cells of the same kernel. Values do not, because each cell is a new process: a variable begins with its initial value again.

A cell has declarations and statements in any order; the statements are the body of main(). A cell may define main() itself instead. A line "%%" says that
everything after it is a statement. "%list" shows what was declared, "%reset" forgets it."""
import codecs
import os
import re
import selectors
import shutil
import subprocess
import tempfile

from ipykernel.kernelapp import IPKernelApp
from ipykernel.kernelbase import Kernel

GRACE_S = 1  # from an interrupt to a kill
HOME = "/var/lib/code-interpreter/go"

TOKEN = re.compile(r"""
    (?P<newline>\n) | (?P<space>[^\S\n]+) | (?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<string>`[^`]*`|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    | (?P<name>[^\W\d]\w*) | (?P<number>\.?\d[\w.]*) | (?P<op>\+\+|--|.)""", re.DOTALL | re.VERBOSE)
# a line that ends in one of these, or in a name, a number or a string, ends a statement (the language's specification, "Semicolons")
ENDS = {"++", "--", ")", "]", "}"}
KEYWORDS = set("case chan const default defer else for func go goto if import interface map package range select struct switch type var".split())


class CellError(Exception):
    def __init__(self, name, text, lines=()):
        super().__init__(text)
        self.name, self.text, self.lines = name, text, list(lines) or [f"{name}: {text}"]


class Item:
    """A declaration or a statement: its tokens (kind, text), and the line of the cell on which it begins."""

    def __init__(self, tokens, line):
        self.tokens, self.line = tokens, line
        self.words = [text for kind, text in tokens if kind not in ("space", "newline", "comment")]
        self.text = "".join(text for _, text in tokens)
        self.kind, self.names = self.classify()

    def classify(self):
        first = self.words[0]
        if first in ("type", "const", "var"):
            return first, self.declared(first)
        if first in ("package", "import"):
            return first, ()
        if first == "func" and len(self.words) > 1:
            return self.function()
        return "statement", ()

    def function(self):
        words = self.words
        if words[1] != "(":
            return "func", (words[1],)
        end = close(words, 1)
        # a method has a name after its receiver, and a list of parameters after that; a function literal has not
        if end + 2 < len(words) and words[end + 1].isidentifier() and words[end + 2] == "(":
            receiver = [w for w in words[2:end] if w.isidentifier()]
            return "func", (f"{receiver[1] if len(receiver) > 1 and words[3] != '[' else receiver[0] if receiver else ''}.{words[end + 1]}",)
        return "statement", ()

    def declared(self, keyword):
        """The names that a declaration declares; of a group, all of them."""
        if self.words[1:2] != ["("]:
            return names_of(self.words[1:], keyword)
        return tuple(name for spec in self.specs() for name in names_of(spec.words, keyword))

    def specs(self):
        """The lines of a group: `var ( a = 1; b = 2 )`, `import ( ... )`."""
        at = [i for i, (kind, text) in enumerate(self.tokens) if text == "(" and kind == "op"][0]
        end = [i for i, (kind, text) in enumerate(self.tokens) if text == ")" and kind == "op"][-1]
        before = "".join(text for _, text in self.tokens[:at + 1])
        return split(self.tokens[at + 1:end], self.line + before.count("\n"), Spec)


class Spec(Item):
    def classify(self):
        return "spec", ()


def close(words, at):
    """Where the bracket that opens at `at` is closed."""
    depth = 0
    for i in range(at, len(words)):
        depth += (words[i] in "([{") - (words[i] in ")]}")
        if depth == 0:
            return i
    return len(words) - 1


def names_of(words, keyword):
    if keyword == "type" or not words:
        return tuple(words[:1])
    names = [words[0]]
    for comma, name in zip(words[1::2], words[2::2]):
        if comma != ",":
            break
        names.append(name)
    return tuple(names)


def tokens_of(text):
    return [(m.lastgroup, m.group()) for m in TOKEN.finditer(text)]


def split(tokens, line, kind=Item):
    """Cuts at the ends of statements that are in no bracket."""
    items, part, begins, depth, last = [], [], line, 0, None
    for k, text in tokens + [("newline", "\n")]:
        ends = k == "newline" or (k == "comment" and "\n" in text)
        if depth == 0 and (text == ";" and k == "op" or (ends and last and (last[1] in ENDS or (last[0] != "op" and last[1] not in KEYWORDS)))):
            if last:
                items.append(kind(part, begins))
            part, last = [], None
        elif k in ("space", "newline", "comment"):
            if last:
                part.append((k, text))
        else:
            if not last:
                begins = line
            part.append((k, text))
            last = (k, text)
            if k == "op":
                depth += (text in "([{") - (text in ")]}")
        line += text.count("\n")
    if last:  # brackets that are not closed: the compiler says what is wrong
        items.append(kind(part, begins))
    return items


def imports_of(item):
    """(name, or "_" or "."; the text) of each package that an import declaration names."""
    for spec in item.specs() if item.words[1:2] == ["("] else [Spec(item.tokens[1:], item.line)]:
        path = spec.words[-1].strip('"`')
        parts = [p for p in path.split("/") if not re.fullmatch(r"v[0-9]+", p)] or [path]
        name = spec.words[0] if len(spec.words) > 1 else re.sub(r"(^go-|\.v[0-9]+$)", "", parts[-1])
        yield name, " ".join(spec.words).replace("`", '"')


class Session:
    """What the cells have declared so far."""

    def __init__(self):
        self.imports, self.items = {}, []

    def read(self, code, cell):
        """The program for a cell, and what it declares if it compiles."""
        new, body, main = Session(), [], None
        new.imports, new.items = dict(self.imports), list(self.items)
        code, mark, rest = ("\n" + code).partition("\n%%")
        code = code[1:]
        for item in split(tokens_of(code), 1):
            if item.kind == "import":
                new.imports.update((text if name in "_." else name, (name, text)) for name, text in imports_of(item))
            elif item.kind == "func" and item.names == ("main",):
                main = item
            elif item.kind == "statement":
                body.append(item)
            elif item.kind != "package":
                new.declare(item, cell)
        if mark:
            rest = rest.partition("\n")[2]
            body += split(tokens_of(rest), code.count("\n") + 3)
        if main and body:
            raise CellError("CompileError", f"cell{cell}.go:{body[0].line}: the cell defines main() and has statements outside of it. Move them into main().")
        return new, new.program(cell, main, body)

    def declare(self, item, cell):
        """A group of variables or types is kept as single ones, so that one of them can be declared again. Constants of a group may need each other."""
        if item.kind in ("var", "type") and item.words[1:2] == ["("]:
            parts = [Item([("name", item.kind), ("space", " ")] + s.tokens, s.line) for s in item.specs()]
        else:
            parts = [item]
        for part in parts:
            names = set(part.names) - {"_"}
            self.items = [(c, old) for c, old in self.items if not names & set(old.names)]
            self.items.append((cell, part))

    def program(self, cell, main, body):
        parts = [self.placed(c, item) for c, item in self.items]
        parts += [self.placed(cell, main)] if main else ["func main() {\n", *(self.placed(cell, s) for s in body), "}\n"]
        used = {a for items in (self.items, [(cell, i) for i in body + [main] if i]) for _, i in items for a, dot in zip(i.words, i.words[1:]) if dot == "."}
        imports = [text for name, text in self.imports.values() if name in "_." or name in used]
        return "package main\n" + "".join(f"import {text}\n" for text in imports) + "".join(parts)

    @staticmethod
    def placed(cell, item):
        return f"//line cell{cell}.go:{item.line}\n{item.text}\n"


class GoKernel(Kernel):
    implementation, implementation_version = "code-interpreter-go", "1"
    language_info = {"name": "go", "mimetype": "text/x-go", "file_extension": ".go"}
    banner = "Go"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.declared = Session()
        self.cell_folder = tempfile.mkdtemp(prefix="go-kernel-")
        home = HOME if os.access(HOME, os.W_OK) else self.cell_folder
        self.cell_env = {"GOCACHE": f"{home}/cache", "GOPATH": f"{home}/path", "GOTOOLCHAIN": "local"} | os.environ
        # The packages that are imported are fetched, where the sandbox's network allows it. The image has a compiled standard library, which Go from 1.20 looks
        # for only with this setting.
        self.build_env = self.cell_env | {"GOFLAGS": "-mod=mod", "GODEBUG": ",".join(filter(None, (os.environ.get("GODEBUG"), "installgoroot=all")))}

    def do_shutdown(self, restart):
        shutil.rmtree(self.cell_folder, ignore_errors=True)
        return {"status": "ok", "restart": restart}

    def cell_say(self, name, text):
        if text and not self.cell_silent:
            self.send_response(self.iopub_socket, "stream", {"name": name, "text": text})

    def cell_follow(self, process, take):
        """Hands over what the process writes, until it has ended. What its own children write later is not waited for."""
        with selectors.DefaultSelector() as wait:
            for name, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
                os.set_blocking(pipe.fileno(), False)
                wait.register(pipe, selectors.EVENT_READ, (name, codecs.getincrementaldecoder("utf-8")("replace")))
            end = os.pidfd_open(process.pid)
            try:
                wait.register(end, selectors.EVENT_READ)
                self.cell_pump(wait, end, take)
            finally:
                os.close(end)
        return process.wait()

    @staticmethod
    def cell_pump(wait, end, take):
        ended = False
        while ready := wait.select(0 if ended else None):
            for key, _ in ready:
                if key.fileobj == end:
                    ended = True
                    wait.unregister(end)
                    continue
                name, decoder = key.data
                data = key.fileobj.read1(65536) or b""
                take(name, decoder.decode(data, not data))
                if not data:
                    wait.unregister(key.fileobj)

    def cell_run(self, argv, take, cwd, env):
        """Its status. An interrupt reaches the process as well, which is in the kernel's own group; one that goes on is killed."""
        process = subprocess.Popen(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        try:
            return self.cell_follow(process, take)
        except KeyboardInterrupt:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
        finally:
            process.stdout.close()
            process.stderr.close()

    def cell_build(self, program, again=False):
        with open(f"{self.cell_folder}/cell.go", "w", encoding="utf-8") as f:
            f.write(program)
        if not os.path.exists(f"{self.cell_folder}/go.mod"):
            with open(f"{self.cell_folder}/go.mod", "w") as f:
                f.write("module cell\n")
        said = []
        if self.cell_run(["go", "build", "-ldflags=-s -w", "-o", f"{self.cell_folder}/cell", "."], lambda _, text: said.append(text), self.cell_folder, self.build_env):
            said = "".join(said)
            # a name that is also a local variable's: two wordings, of Go from 1.20 and before
            unused = re.findall(r'cell\.go:\d+:\d+: (?:imported and not used: )?"([^"]+)"(?: imported (?:as \S+ )?and not used)?', said)
            if unused and not again:
                return self.cell_build("".join(line for line in program.splitlines(True) if not (line.startswith("import ") and set(line.split('"')) & set(unused))), True)
            lines = [re.sub(r"^(\./|" + re.escape(self.cell_folder) + "/)", "", line) for line in said.splitlines() if line and not line.startswith("#")]
            raise CellError("CompileError", lines[0] if lines else "go build failed", lines)

    def cell_start(self):
        """Runs what was built."""
        tail = []

        def take(name, text):
            self.cell_say(name, text)
            if name == "stderr":
                tail[:] = ["".join(tail)[-65536:] + text]
        status = self.cell_run([f"{self.cell_folder}/cell"], take, None, self.cell_env)
        said = re.search(r"^(panic|fatal error): (.*)", "".join(tail), re.MULTILINE)
        if status == 2 and said:
            raise CellError(said[1].replace("fatal error", "FatalError"), said[2])
        if status:
            raise CellError("ExitError", f"exit status {status}" if status > 0 else f"signal {-status}")

    def cell_command(self, code):
        """Is the cell one of our own words?"""
        if code.strip() == "%reset":
            self.declared = Session()
        elif code.strip() == "%list":
            shown = [f"import {text}" for _, text in self.declared.imports.values()] + [item.text for _, item in self.declared.items]
            self.cell_say("stdout", "".join(f"{text}\n" for text in shown))
        else:
            return False
        return True

    def cell_execute(self, code):
        if self.cell_command(code):
            return
        session, program = self.declared.read(code, self.execution_count)
        self.cell_build(program)
        if not self.cell_silent:  # such a request leaves nothing behind
            self.declared = session
        self.cell_start()

    def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False, **more):
        self.cell_silent = silent
        try:
            self.cell_execute(code)
        except KeyboardInterrupt:
            error = CellError("KeyboardInterrupt", "the cell was interrupted")
        except CellError as e:
            error = e
        except OSError as e:
            error = CellError("KernelError", f"cannot run go: {e}")
        else:
            return {"status": "ok", "execution_count": self.execution_count, "payload": [], "user_expressions": {}}
        content = {"ename": error.name, "evalue": error.text, "traceback": error.lines}
        if not silent:
            self.send_response(self.iopub_socket, "error", content)
        return {"status": "error", "execution_count": self.execution_count} | content


if __name__ == "__main__":
    IPKernelApp.launch_instance(kernel_class=GoKernel)
