"""Bash itself is the judge of words: what a script hands to `show` is what is read, or is not resolved and says so."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from random import Random

import pytest

from moeparity.errors import SpecError
from moeparity.profiles.launch import read
from moeparity.profiles.launch.reading.shell.interpret import interpreted

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")
SHOW = 'show() { printf "<"; printf "%s\\0" "$@"; printf ">"; }\n'
SNIPPETS = (
    "show a 'b c' \"d e\" f\\ g 'h'\"i\"j",
    "A=4; show $A \"$A\" '$A' ${A}x x$A",
    'A="1 2"; show $A "$A" x$A"y"$A',
    'show ${NOT_SET:-4} ${NOT_SET-5} "${NOT_SET:-a b}" ${NOT_SET:-a b}',
    'A=; show ${A:-4} [${A-5}] ${A:+6} [${A+7}] "$A" $A',
    "show ${A:=3} $A; A=9; show $A",
    'A=(1 "2 3" --x=4); show "${A[@]}" ${A[@]} "${A[0]}" ${#A[@]} $A',
    'A=(); show "${A[@]}" ${A[@]} x"${A[@]}"y',
    'A=(1); A+=(2 "3 4"); A+=(--b); show "${A[@]}"',
    'A=(a b c d); show "${A[@]:1}" "${A[@]:1:2}" x"${A[@]}"y',
    "A=(a\n  # no comment\n  b # nor this\n  --c='d e' \\\n  f\n)\nshow \"${A[@]}\"",
    'A=1; A+=2; A+="3 4"; show "$A" $A',
    'B=4; A=(--tp $B --name "x $B"); B=5; show "${A[@]}"',
    "A=7; show $((A * 2 + 1)) $(( (A - 10) / 2 )) $((A % 4)) $((-7 / 2)) $(($A*$A))",
    "A=model-30B.sh; show ${A%.sh} ${A#model-} ${A%%-*} ${A##*-} ${A/30B/4B} ${A:0:5} ${A^^} ${A,,} ${#A}",
    'A=x; if [ "$A" = x ]; then show yes; else show no; fi',
    "A=x; if [[ $A == x* && -n $A ]]; then show yes; elif true; then show no; fi",
    'A=3; if [ $A -gt 2 ] && [ $A -le 3 ]; then show in; fi; [ $A -eq 4 ] || show out; [ -z "" ] && show empty',
    "A=3; if (( A > 2 )); then show big; fi; if ! [ $A -lt 2 ]; then show not small; fi",
    "if [ a = b -o c = c ]; then show or; fi; if [ a = a -a b = c ]; then show and; fi; [[ ! a == b ]] && show bang",
    "case vllm in sglang) show 1 ;; vllm | hf) show 2 ;; *) show 3 ;; esac",
    "case Qwen/Qwen3-30B in *30B*) show big ;; *) show small ;; esac",
    "for i in a 'b c' d; do show $i \"$i\"; done",
    'A=(1 2); for i in "${A[@]}" 3; do B+="$i,"; done; show $B',
    'f() { local a=$1; shift; show "$a" "$@" $#; }; f 1 "2 3" 4',
    "f() { A=inside; }; A=outside; f; show $A; (A=below; show $A); show $A",
    'f() { show "$@"; return 0; show never; }; f "a b" c',
    "show before; exit 0; show after",
    'A=\'{\n  "a": [1, 2],\n  "b": "c d"\n}\'\nshow "$A" \'{"x": 1}\'',
    'P=4; A="{\\"a\\": \\"${P}\\", \\"b\\": \\"\\$P\\"}"; show "$A"',
    'show $\'a\\tb\\n\' "a\\nb" a\\\\b "a\\\\b" "\\$x" "\\""',
    'show "a\\\nb" a\\\nb c \\\n  d',
    'B=2; A=$(cat <<EOF\n{"p": ${B}}\nEOF\n); show "$A"',
    'A=$(cat <<\'EOF\'\n{"p": ${B}}\nEOF\n); show "$A"',
    'D="$(dirname "/a/b/c.sh")"; show "$D" "$(basename /a/b/c.sh)"',
    'show "$(basename /a/b.sh .sh)" "$(basename .sh .sh)" "$(basename b.sh.sh .sh)" "$(basename a/b.sh sh)"',
    "P=/r/tests/a; show $(echo $P/x.yaml | sed 's#tests/a#conf/b#') $(echo aXbXc | sed s/X/-/g)",
    "show $(echo a.b+cxb | sed 's|a.b+c|(x)|') $(echo aab | sed 's#a.#-#g') $(echo tests tests | sed 's#tests#b#')",
    "show \"$(echo 'a  b' c)\" $(echo 'a  b' c) $(echo no | sed 's#y#z#') $(echo) $(cd /usr && pwd)",
    "show $(echo Qwen3-MoE | tr '[:upper:]' '[:lower:]') $(echo ab | tr a-z A-Z) $(echo Ab1 | tr A-Z a-z | sed s/1/2/)",
    'A="--x 1 --y"; eval "show $A"; CMD="show q"; eval $CMD',
    "{ show a; show b; }; show c & wait",
    "show a | cat; show b > /dev/stdout 2>&1",
    'export A="x y"; show "$A"; unset A; show "[${A:-gone}]"',
    'A=1 B="2 3"; show $A $B; A=9 show $A',
    "declare -a L=(1 2); readonly R=3; show ${L[@]} $R; local_name=4; show ${local_name}",
    'A=(x); show "${A[@]:-none}"; B=(); show "${B[@]:-none}" ${B[@]+"${B[@]}"} end',
    'A=(1 2 3); show "${A[@]}" "${#A[@]}"; A=(); show ${#A[@]}',
    "until true; do show never; done; while false; do show never; done; show on",
    'set -- a \'b c\'; show "$@" $# "$2"; shift 2; show on $#',
    'A=(1 "2 3"); show "${A[*]}" ${A[*]} x"${A[*]}"; set -- p "q r"; show "$*" $*',
    "for i in a b c; do if [ $i = b ]; then continue; fi; show $i; done; for i in a b; do show $i; break; done",
    "f() { [ $1 = a ] && return; show $1; }; f a; f b",
    "set -a; A=1; set +a; B=2; bash -c 'true'; show $A $B",
    ': "${TP:=$((2 + 2))}"; show $TP',
    "N=8; show --x=$(( (N + 1) * 2 ))",
    'A=a; B=b; show "$A $B" "$A"" ""$B" $A\' \'b',
    'A=a; show "$A  $((1 + 1)) $(basename /x/y) ${A}  " " $A" "\n$A\n $A"',
    "show a#b '#c' # d",
    'show "${A:-$(( 3 * (2 + 1) ))}"',
    "show x* 2>/dev/null [x] a?b; show --tp 4 2> log --ep 8; cat > file <<EOF --x\nshow no\nEOF\nshow end",
    'N=3; M=5; show [0]*$N+[1]*$M x; A=(--freq [0]*$N+[1]*$M y); show "${A[@]}"; B=[0]*$N+[1]*$M; show $B',
    "P=80; show http://[a]*$P/b a]*$P-c '[0]*$N' \"[0]*$P\"",
    "show a \\\n  b \\\n",
    "show a `# first` \\\n  b `# second`  \\\n  c '`# kept`'",
    'Y=4; X="${X:-[\'$Y\', \'5\']}"; show "$X" "${Z:=[\\"a\\"]}" "$Z"',
    'A="${A:-{\\"a\\":{\\"b\\":false}}}"; show "$A" "${B:-\'q\'}" "${A:+[x]}"',
    'A=(2 3); for (( i = 0; i < A[${Z:-0}]; i++ )); do B=1; done; show "${A[@]}"',
    'show "${U:="http://[x]:80"}" "$U"',
    'set -euo pipefail; A=${A:-}; if [ -n "$A" ]; then show set; fi; show done',
)


def judged(script: str, folder: Path) -> list[list[str]]:
    """What bash hands to `show`, call by call."""
    assert BASH is not None
    environment = {"PATH": os.environ["PATH"]}
    process = subprocess.run(
        [BASH, "--norc", "-c", SHOW + script], cwd=folder, env=environment, capture_output=True, check=False, timeout=20
    )
    calls = process.stdout.decode().split(">")[:-1]
    return [call.removeprefix("<").split("\0")[:-1] for call in calls]


def as_read(script: str, path: Path) -> list[tuple[list[str], bool]]:
    """The same as it is read, and whether all of it is resolved."""
    commands = [command for command in interpreted(script, path).commands if command.words[0].text == "show"]
    return [
        ([word.text for word in c.words[1:]], all(w.is_known and not w.condition for w in c.words) and not c.condition)
        for c in commands
    ]


@pytest.mark.parametrize("script", SNIPPETS)
def test_words_are_those_of_bash(script: str, tmp_path: Path) -> None:
    read = as_read(script, tmp_path / "a.sh")
    assert all(resolved for _, resolved in read), read
    assert [words or [""] for words, _ in read] == judged(script, tmp_path)


def test_a_sourced_file_keeps_the_name_of_the_script(tmp_path: Path) -> None:
    script = 'source ./common.env; show "$NAME" "$FILE"'
    (tmp_path / "common.env").write_text('NAME=$(basename $0 .sh); FILE=$(basename "${BASH_SOURCE[0]}")\n', "utf-8")
    (tmp_path / "run.sh").write_text(SHOW + script, "utf-8")
    assert BASH is not None
    out = subprocess.run([BASH, "--norc", "run.sh"], cwd=tmp_path, capture_output=True, check=True)
    assert out.stdout == b"<run\0common.env\0>"
    assert as_read(script, tmp_path / "run.sh") == [(["run", "common.env"], True)]


def test_what_is_exported_is_handed_on(tmp_path: Path) -> None:
    script = "A=1; export B=2 C; set -a; D=3; set +a; E=4; F=5 show x"
    (command,) = [c for c in interpreted(script, tmp_path / "a.sh").commands if c.words[0].text == "show"]
    assert {name: word.text for name, word in command.environment} == {"B": "2", "C": "\0$C\0", "D": "3", "F": "5"}
    (tmp_path / "b.sh").write_text(script.replace("show x", "env"), "utf-8")
    assert BASH is not None
    environment = {"PATH": os.environ["PATH"]}
    out = subprocess.run([BASH, "--norc", "b.sh"], cwd=tmp_path, env=environment, capture_output=True, check=True)
    true = dict(line.split("=", 1) for line in out.stdout.decode().splitlines())
    assert {name: true[name] for name in "ABCDEF" if name in true} == {"B": "2", "D": "3", "F": "5"}


OPEN = (
    ("show $(nproc)", "$(nproc)"),
    ("show ${FROM_OUTSIDE}", "${FROM_OUTSIDE}"),
    ("show $HOME/x", "$HOME/x"),
    ("show $(cd /usr)", "$(cd /usr)"),
    ("show $(basename x y z)", "$(basename x y z)"),
    ("show $(echo -n x)", "$(echo -n x)"),
    ("show $(echo $X | sed s/a/b/)", "$(echo $X | sed s/a/b/)"),
    ("show $(echo ab | cat)", "$(echo ab | cat)"),
    ("show $(echo ab | tr -d a)", "$(echo ab | tr -d a)"),
    ("show $(echo 'a/b' | sed 's#a\\/#c#')", "$(echo 'a/b' | sed 's#a\\/#c#')"),
    ("show $(echo ab | sed 's#[a]#c#')", "$(echo ab | sed 's#[a]#c#')"),
    ("show $(echo ab | sed 's#a#&&#')", "$(echo ab | sed 's#a#&&#')"),
    ("show $(echo ab | sed -n 's#a#c#')", "$(echo ab | sed -n 's#a#c#')"),
    ("show {1..3} {a,b}", "{1..3}"),
    ('A=`hostname`; show "x-$A"', "x-`hostname`"),
    ("read -r A < file; show $A", "read"),
    ("show $(( $(nproc) / 2 ))", "$(( $(nproc) / 2 ))"),
    ("show ${!NAME}", "${!NAME}"),
    ("B=${A:?needed}; show $B", "${A:?needed}"),
)


@pytest.mark.parametrize(("script", "text"), OPEN)
def test_what_only_a_run_would_tell_is_not_resolved(script: str, text: str, tmp_path: Path) -> None:
    ((words, resolved),) = as_read(script, tmp_path / "a.sh")
    assert not resolved
    assert text in words[0].replace("\0", "")


UNDECIDED = (
    'if [ "$X" = 1 ]; then A=(--x); else A=(--y); fi; show a "${A[@]}" z',
    'A=(a); [ -f config ] && A+=(--x); show "${A[@]}"',
    "if nvidia-smi | grep -q H100; then T=8; else T=4; fi; show --tp $T",
    'case "$X" in a) T=1 ;; b) T=2 ;; esac; show "$T"',
    'for f in *.txt; do A+=("$f"); done; show "${A[@]}"',
    "while [ $N -gt 0 ]; do T=2; done; show $T",
    'if [ "$X" = 1 ]; then show --x; fi',
)


@pytest.mark.parametrize("script", UNDECIDED)
def test_a_branch_that_cannot_be_decided_is_told_with_its_line(script: str, tmp_path: Path) -> None:
    scope = interpreted(script, tmp_path / "a.sh")
    (command,) = [command for command in scope.commands if command.words[0].text == "show"]
    words = command.condition + " ".join(word.text + word.condition for word in command.words)
    assert "line 1: " in words


def test_what_every_branch_gives_stands_under_no_condition(tmp_path: Path) -> None:
    script = 'O="--tp 4"; [ -n "$X" ] && O="$O --eager"; show $O'
    ((words, _),) = as_read(script, tmp_path / "a.sh")
    (command,) = interpreted(script, tmp_path / "a.sh").commands
    assert words == ["--tp", "4", "--eager"]
    assert [bool(word.condition) for word in command.words] == [False, False, False, True]


def a_script(random: Random) -> str:
    """Assignments, arrays, expansions, tests and loops, put together at random."""
    names = ["A", "B", "C"]
    texts = ["4", "a b", "--x=1", "vllm", "", "x'y", "7"]
    lines = [f"{name}={random.choice(texts)!r}" for name in ("A", "B")] + ["C=(1 '2 3')"]

    def use() -> str:
        name = random.choice(names)
        forms = [
            f"${name}",
            f'"${name}"',
            f"${{{name}:-d e}}",
            f'"${{{name}[@]}}"',
            f"x${{{name}}}y",
            f'"${{{name}%[0-9]}}"',
        ]
        return random.choice([*forms, "${#A}", "$((3 + 4))", "'q r'", "${D:-5}", '"${C[@]:1}"'])

    for _ in range(random.randint(2, 7)):
        kind = random.randrange(6)
        name = random.choice(names)
        lines.append(
            [
                f"{name}={use()}" if name != "C" else f"C=({use()} {use()})",
                f"C+=({use()} --y)",
                f'if [ "$A" = {random.choice(["vllm", "4"])} ]; then B={use()}; else C=({use()}); fi',
                f"for i in 1 {use()}; do B=$i; done",
                f'[[ -n "$B" ]] && A={use()}',
                f'f() {{ show in "$@" ${{1:-none}}; }}; f {use()}',
            ][kind]
        )
        lines.append(f"show {use()} {use()}")
    return "\n".join(lines)


def test_scripts_put_together_at_random_are_read_as_bash_reads_them(tmp_path: Path) -> None:
    """What is resolved is right; most of it is resolved."""
    random, resolved, calls = Random(17), 0, 0  # noqa: S311
    for _ in range(60):
        script = a_script(random)
        true = judged(script, tmp_path)
        read = as_read(script, tmp_path / "a.sh")
        assert len(read) == len(true), script
        for (words, is_resolved), expected in zip(read, true, strict=True):
            calls += 1
            resolved += is_resolved
            assert not is_resolved or (words or [""]) == expected, script
    assert calls > 150
    assert resolved > 0.75 * calls


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("A=x\n" + 'A="$A$A"\n' * 40, "takes more than 4,000,000 letters"),
        ("A=(x x)\n" + 'A=("${A[@]}" "${A[@]}")\n' * 40, "takes more than 4,000,000 letters"),
        ("f() { f; }\nf\n", "nested deeper than 60 levels"),
        ("f() { f; f; }\ng() { f & f; }\ng\n", "nested deeper than 60 levels"),
        ("( " * 200 + "a" + " )" * 200, "nested deeper than 60 levels"),
        ("A=" + '"${A:-' * 100 + "x" + '}"' * 100, "nested deeper|is no command line"),
        ('eval \'eval "$X"\'\nX=\'eval "$X"\'\neval "$X"\n', "nested deeper than 60 levels"),
        ("for i in 1 2 3 4 5 6 7 8 9 0; do " * 7 + "B=1; " + "done; " * 7, "takes more than 200,000 steps"),
        ("echo 'open", "is no command line that can be read here"),
        ("if true; then", "is no command line that can be read here"),
        ("a\0b", "holds a NUL character"),
    ],
)
def test_what_would_go_on_for_ever_is_refused(script: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=says):
        interpreted(script, tmp_path / "a.sh")


@pytest.mark.parametrize("end", ["\\", "\\\n", "\\\n\n"])
def test_a_file_may_end_in_a_line_that_goes_on(end: str, tmp_path: Path) -> None:
    assert BASH is not None
    script = tmp_path / "a.sh"
    script.write_text(f"{SHOW}show a b {end}", "utf-8")
    out = subprocess.run([BASH, "--norc", script], capture_output=True, check=True).stdout
    assert [words for words, _ in as_read(script.read_text("utf-8").removeprefix(SHOW), script)] == [["a", "b"]]
    assert out == b"<a\0b\0>"


SERVE = "vllm serve m -tp 2"


@pytest.mark.parametrize(
    "launcher",
    [
        "numactl -m 0",
        "numactl -N 0 -m 0 --",
        "uv run --extra vllm",
        "uvx --from vllm",
        "uv run --with vllm --isolated",
        "conda run -n vllm --no-capture-output",
        "srun -J vllm --nodes=1",
        "srun --job-name rl -p trainer",
        "nice -n 5 taskset -c 0-3",
    ],
)
def test_a_launcher_s_options_are_no_programs(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(f"{launcher} vllm serve Qwen/Qwen3-30B-A3B -tp 2 --enforce-eager\n", "utf-8")
    launch = read(tmp_path / "launch.sh")
    assert (launch.model.name, launch.sides[0].profile) == ("Qwen/Qwen3-30B-A3B", "vllm-eager")
    assert not launch.notes


OPENRLHF = "openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen3-30B-A3B --vllm_tensor_parallel_size 2"


@pytest.mark.parametrize(
    "launcher",
    [
        "python -m",
        "deepspeed --module",
        "deepspeed --num_gpus 8 --module",
        "deepspeed --hostfile hosts.txt --include localhost:0,1 --module",
        "python -m deepspeed.launcher.runner --num_gpus 8 --module",
        "torchrun -m",
        "torchrun --nproc-per-node 8 --module",
        "python3 -m torch.distributed.run --nproc-per-node 8 -m",
        "accelerate launch -m",
        "accelerate launch --config_file zero3.yaml --module",
        "accelerate launch --use_deepspeed --num_processes 8 -m",
        "python -m accelerate.commands.accelerate_cli launch -m",
        "uv run --module",
        "uv run deepspeed --module",
        "srun --ntasks 1 accelerate launch -m",
    ],
)
def test_a_launcher_starts_a_module(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(f"{launcher} {OPENRLHF}\n", "utf-8")
    launch = read(tmp_path / "launch.sh")
    assert (launch.engine, launch.model.name) == ("OpenRLHF", "Qwen/Qwen3-30B-A3B")
    assert launch.sides[1].variant == "{profile: vllm-allreduce-norm, placement: {tensor: 2}}"
    assert not launch.notes


@pytest.mark.parametrize(
    "launcher",
    ["deepspeed", "deepspeed --num_gpus 8", "torchrun --nproc-per-node 8", "accelerate launch --num_processes 8"],
)
def test_a_launcher_starts_a_script(launcher: str, tmp_path: Path) -> None:
    text = f"{launcher} train.py --use_vllm --vllm_mode colocate --module x -m y --vllm_tensor_parallel_size 4\n"
    (tmp_path / "launch.sh").write_text(text, "utf-8")
    launch = read(tmp_path / "launch.sh")
    assert (launch.engine, launch.sides[1].placement) == ("TRL", {"tensor": 4})
    assert [key.name for key in launch.ignored] == ["module", "m"]


@pytest.mark.parametrize(
    ("script", "shown"),
    [
        (f"TP=${{TP:-2}}; {SERVE}", "TP"),
        (f"TP=${{1:-2}}; M=${{MODEL:-m}}; {SERVE}", "$1, MODEL"),
        (f"TP=${{10:-2}}; {SERVE}", "${10}"),
    ],
)
def test_an_argument_of_the_script_is_shown_as_one(script: str, shown: str, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(script + "\n", "utf-8")
    (note,) = read(tmp_path / "launch.sh").notes
    assert note.says == f"taken as set nowhere outside, so that their defaults hold: {shown}"


LOST = "may not hand on VLLM_BATCH_INVARIANT"


@pytest.mark.parametrize(
    ("script", "invariant", "note"),
    [
        (f"export VLLM_BATCH_INVARIANT=1; {SERVE}", True, ""),
        (f"export VLLM_BATCH_INVARIANT=1; export -n VLLM_BATCH_INVARIANT; {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT=1; declare +x VLLM_BATCH_INVARIANT; {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT; VLLM_BATCH_INVARIANT=1; {SERVE}", True, "a value from outside"),
        (f"export VLLM_BATCH_INVARIANT=1; env -i {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT=1; env -u VLLM_BATCH_INVARIANT {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT=1; env --unset=VLLM_BATCH_INVARIANT A=b {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT=1; env -u OTHER {SERVE}", True, ""),
        (f"export VLLM_BATCH_INVARIANT=1; sudo {SERVE}", True, LOST),
        (f"export VLLM_BATCH_INVARIANT=1; sudo -E {SERVE}", True, ""),
        (f"sudo VLLM_BATCH_INVARIANT=1 {SERVE}", True, ""),
        (f"export VLLM_BATCH_INVARIANT=1; docker exec c {SERVE}", False, LOST),
        (f"export VLLM_BATCH_INVARIANT=1; docker exec -e VLLM_BATCH_INVARIANT c {SERVE}", True, ""),
        (f"export VLLM_BATCH_INVARIANT=1; docker exec --env VLLM_BATCH_INVARIANT=0 c {SERVE}", False, ""),
        (f"export VLLM_BATCH_INVARIANT=1; ray job submit -- {SERVE}", True, LOST),
        (f"apptainer exec --nv --env VLLM_BATCH_INVARIANT=1 image {SERVE}", True, ""),
        (f"mpirun -np 1 -x VLLM_BATCH_INVARIANT=1 {SERVE}", True, ""),
        (
            f"srun --export=ALL,VLLM_BATCH_INVARIANT=1 {SERVE}",
            False,
            "`--export=ALL,VLLM_BATCH_INVARIANT=1` is not read",
        ),
        (f"uv run --env-file job.env {SERVE}", False, "`--env-file` is not read"),
        (f"echo --enforce-eager | xargs {SERVE}", False, "`xargs` adds words from its input"),
        (f"IFS=,; X=--enforce-eager,-ep; {SERVE} $X", False, "IFS is set"),
    ],
)
def test_which_variables_reach_a_program(script: str, invariant: bool, note: str, tmp_path: Path) -> None:
    (tmp_path / "launch.sh").write_text(script + "\n", "utf-8")
    launch = read(tmp_path / "launch.sh")
    assert (launch.sides[0].profile == "vllm-batch-invariant") == invariant
    notes = " ".join(note_there.says for note_there in launch.notes)
    assert (note in notes) if note else not notes
