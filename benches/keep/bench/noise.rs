//! All that a conversation holds beside its facts: code, logs, test runs, small talk, and a good deal that reads
//! like a fact and is none (rules in documents that were read, errors that were fixed, ideas that nobody took up).

use super::words::{Names, camel, capitalised};

/// A file as a tool shows it, with line numbers; about `lines` long.
pub fn file(names: &mut Names, path: &str, lines: usize) -> String {
    let write: fn(&mut Names) -> String = match path.rsplit('.').next() {
        Some("py") => python,
        Some("ts" | "tsx") => typescript,
        Some("go") => go,
        Some("md") => document,
        Some("toml" | "yaml" | "json") => settings,
        Some("sql") => sql,
        _ => rust,
    };
    let mut text = String::new();
    let mut number = 1;
    while number <= lines {
        for line in write(names).lines() {
            text.push_str(&format!("{number}\t{line}\n"));
            number += 1;
        }
    }
    text
}

fn rust(names: &mut Names) -> String {
    let (a, b, c) = (names.ident(), names.ident(), names.ident());
    let number = names.rng.u32(2..900);
    let comment = code_comment(names);
    match names.rng.u8(..5) {
        0 => format!(
            "/// {comment}\npub fn {a}(&self, {b}: &{}) -> Result<usize, Error> {{\n    let {c} = self.{b}.lock().map_err(|_| Error::Poisoned)?;\n    if {c}.len() > {number} {{\n        return Err(Error::TooLarge({c}.len()));\n    }}\n    Ok({c}.iter().filter(|item| item.is_ready()).count())\n}}\n",
            camel(&c)
        ),
        1 => format!(
            "#[derive(Debug, Clone)]\npub struct {} {{\n    {b}: Vec<{}>,\n    {c}: Option<Duration>,\n    // {comment}\n    limit: usize,\n}}\n",
            camel(&a),
            camel(&b)
        ),
        2 => format!(
            "impl Drop for {} {{\n    fn drop(&mut self) {{\n        // {comment}\n        self.{b}.close();\n        metrics::counter!(\"{c}\", 1);\n    }}\n}}\n",
            camel(&a)
        ),
        3 => format!(
            "match self.{a}.poll(cx) {{\n    Poll::Ready(Some(Ok({b}))) => self.{c}.push({b}),\n    Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(error.into())),\n    Poll::Ready(None) => break, // {comment}\n    Poll::Pending => return Poll::Pending,\n}}\n"
        ),
        _ => format!(
            "const {}: usize = {number};\n\n#[test]\nfn {b}_is_kept_in_order() {{\n    let mut {c} = {}::default();\n    for at in 0..{number} {{\n        {c}.push(at);\n    }}\n    assert_eq!({c}.len(), {number});\n}}\n",
            a.to_uppercase(),
            camel(&a)
        ),
    }
}

fn python(names: &mut Names) -> String {
    let (a, b, c) = (names.ident(), names.ident(), names.ident());
    let number = names.rng.u32(2..900);
    let comment = code_comment(names);
    match names.rng.u8(..3) {
        0 => format!(
            "def {a}({b}, *, limit={number}):\n    \"\"\"{comment}\"\"\"\n    {c} = []\n    for row in {b}:\n        if row.get(\"state\") == \"ready\":\n            {c}.append(row[\"id\"])\n    return {c}[:limit]\n\n"
        ),
        1 => format!(
            "class {}:\n    def __init__(self, {b}):\n        self._{b} = {b}\n        self._{c} = {{}}  # {comment}\n\n    async def close(self):\n        await self._{b}.aclose()\n\n",
            camel(&a)
        ),
        _ => format!(
            "@pytest.mark.parametrize(\"size\", [0, 1, {number}])\ndef test_{a}(size, {b}):\n    with pytest.raises(ValueError):\n        {c}({b}, size)\n\n"
        ),
    }
}

fn typescript(names: &mut Names) -> String {
    let (a, b, c) = (names.ident(), names.ident(), names.ident());
    let comment = code_comment(names);
    match names.rng.u8(..3) {
        0 => format!(
            "export async function {a}({b}: string): Promise<{}[]> {{\n  // {comment}\n  const response = await fetch(`/api/${{{b}}}`);\n  if (!response.ok) throw new Error(`HTTP ${{response.status}}`);\n  return (await response.json()).{c};\n}}\n\n",
            camel(&c)
        ),
        1 => format!("interface {} {{\n  {b}: number;\n  {c}?: string | null;\n}}\n\n", camel(&a)),
        _ => format!(
            "const [{a}, set{}] = useState<{} | undefined>();\nuseEffect(() => {{\n  const timer = setInterval(() => {b}({a}), {});\n  return () => clearInterval(timer);\n}}, [{c}]);\n\n",
            camel(&a),
            camel(&b),
            names.rng.u32(1..60) * 100
        ),
    }
}

fn go(names: &mut Names) -> String {
    let (a, b, c) = (camel(&names.ident()), names.ident(), names.ident());
    let comment = code_comment(names);
    format!(
        "// {comment}\nfunc (s *Server) {a}(ctx context.Context, {b} string) error {{\n\trows, err := s.db.QueryContext(ctx, {c}Query, {b})\n\tif err != nil {{\n\t\treturn fmt.Errorf(\"{c}: %w\", err)\n\t}}\n\tdefer rows.Close()\n\treturn rows.Err()\n}}\n\n"
    )
}

fn sql(names: &mut Names) -> String {
    let (a, b, c) = (names.ident(), names.ident(), names.ident());
    format!(
        "-- {}\nCREATE TABLE {a} (\n  id bigint PRIMARY KEY,\n  {b} text NOT NULL,\n  {c} timestamptz DEFAULT now()\n);\nCREATE INDEX ON {a} ({b});\n\n",
        code_comment(names)
    )
}

fn settings(names: &mut Names) -> String {
    let (a, b, c) = (names.ident(), names.ident(), names.ident());
    let (x, y) = (names.rng.u32(1..5000), names.rng.u32(1..99));
    format!(
        "[{a}]\n{b} = {x}\n{c} = \"{}-{y}\"\nenabled = {}\n\n",
        names.pick(&["eu", "us", "ap"]),
        names.rng.bool()
    )
}

/// A document of somebody else's project: full of rules that bind nobody here.
fn document(names: &mut Names) -> String {
    let (a, b) = (names.ident(), names.ident());
    let number = names.rng.u32(2..90);
    let line = match names.rng.u8(..8) {
        0 => format!("You must call `{a}()` before `{b}()`, or the behaviour is undefined."),
        1 => format!("Never share a `{a}` between threads."),
        2 => {
            format!("The default of `{a}` is {number}. It was {} before version {}.", number + 3, number % 7)
        }
        3 => format!("We decided to deprecate `{a}` in favour of `{b}` because the old name was confusing."),
        4 => format!("TODO: explain how `{a}` interacts with `{b}`."),
        5 => format!("Always run `make {a}` after pulling."),
        6 => format!("Contributors should not edit `{a}` by hand; it is written by `{b}`."),
        _ => format!(
            "See `{a}` for an example with {number} workers and the discussion of why `{b}` was rejected upstream."
        ),
    };
    format!("## {}\n\n{line} {}\n\n", capitalised(&a.replace('_', " ")), code_comment(names))
}

fn code_comment(names: &mut Names) -> String {
    let ident = names.ident();
    match names.rng.u8(..12) {
        0 => format!("TODO: handle the case where {ident} is empty"),
        1 => format!("FIXME this should not depend on {ident}"),
        2 => format!("Callers must hold the lock of {ident}."),
        3 => format!("Never called with a closed {ident}."),
        4 => format!("HACK: {ident} needs a warm cache, see the wiki"),
        5 => "Keeps the newest ones and drops the rest.".to_owned(),
        6 => "Returns how many were ready.".to_owned(),
        7 => format!("We use a list instead of {ident} because it is short."),
        8 => "Sorted by the time of the last change.".to_owned(),
        9 => format!("Should be faster than {ident}, not measured."),
        10 => "An empty slice is fine here.".to_owned(),
        _ => format!("Mirrors what {ident} does on the server side."),
    }
}

/// What a search prints.
pub fn grep(names: &mut Names, matches: usize) -> String {
    let mut text = String::new();
    for _ in 0..matches {
        let (path, ident, other) = (names.path(), names.ident(), names.ident());
        let line = names.rng.u32(3..900);
        text.push_str(&match names.rng.u8(..4) {
            0 => format!("{path}\n{line}: let {ident} = self.{other}(limit)?;\n"),
            1 => format!("{path}\n{line}: // must not be used outside of {ident}\n"),
            2 => format!("{path}\n{line}: return {ident}({other}, {line});\n"),
            _ => format!("{path}\n{line}: raise ValueError(\"{ident} is required\")\n"),
        });
    }
    text
}

/// What a build or a server prints; words of trouble in it are of no concern.
pub fn log(names: &mut Names, lines: usize) -> String {
    let mut text = String::new();
    let mut minute = names.rng.u32(0..50);
    for _ in 0..lines {
        let (ident, number) = (names.ident(), names.rng.u32(1..4000));
        minute += names.rng.u32(0..2);
        let second = names.rng.u32(0..60);
        let stamp = format!("2026-03-{:02}T10:{:02}:{second:02}Z", 1 + minute % 28, minute % 60);
        text.push_str(&match names.rng.u8(..9) {
            0 => format!("{stamp} INFO  {ident} started, {number} items waiting\n"),
            1 => format!("{stamp} WARN  {ident}: slow query took {number} ms\n"),
            2 => format!("{stamp} DEBUG {ident} heartbeat ok request_id=req_{}\n", names.hex(12)),
            3 => format!("{stamp} ERROR {ident}: connection reset, retrying (attempt {} of 5)\n", number % 5),
            4 => format!("   Compiling {} v0.{}.{}\n", ident.replace('_', "-"), number % 30, number % 9),
            5 => format!("warning: unused variable: `{ident}`\n  --> {}:{number}:9\n", names.path()),
            6 => format!("{stamp} INFO  {ident} finished in {number} ms\n"),
            7 => format!("  GET /{} 200 {number} bytes\n", ident.replace('_', "/")),
            _ => format!("{stamp} INFO  cache {ident}: {} hits, {number} misses\n", number * 3),
        });
    }
    text
}

/// A test run; with a failing test, its message is at the end.
pub fn tests(names: &mut Names, count: usize, failing: Option<&str>) -> String {
    let mut text = format!("running {count} tests\n");
    for _ in 0..count.min(40) {
        text.push_str(&format!("test {}::{} ... ok\n", names.ident(), names.ident()));
    }
    match failing {
        Some(line) => text.push_str(&format!(
            "\nfailures:\n\n{line}\n\ntest result: FAILED. {} passed; 1 failed\n",
            count - 1
        )),
        None => text.push_str(&format!(
            "\ntest result: ok. {count} passed; 0 failed; finished in {}.2s\n",
            names.rng.u8(1..30)
        )),
    }
    text
}

pub fn diff(names: &mut Names, hunks: usize) -> String {
    let path = names.path();
    let mut text = format!("diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n");
    for _ in 0..hunks {
        let (a, b, c) = (names.ident(), names.ident(), names.ident());
        let line = names.rng.u32(1..400);
        text.push_str(&format!("@@ -{line},6 +{line},7 @@ fn {a}\n     let {b} = {c}();\n-    {b}.wait();\n+    {b}.wait_for(limit)?;\n+    self.{a} = Some({b});\n     Ok(())\n"));
    }
    text
}

pub fn history(names: &mut Names, commits: usize) -> String {
    let subjects = ["Fix", "Add", "Drop", "Rename", "Bump", "Speed up", "Document", "Revert"];
    (0..commits)
        .map(|_| format!("{} {} {}\n", names.hex(7), names.pick(&subjects), names.ident().replace('_', " ")))
        .collect()
}

/// A trouble that is over a few rounds later.
pub fn passing_error(names: &mut Names) -> String {
    let (ident, path) = (names.ident(), names.path());
    let line = names.rng.u32(3..700);
    match names.rng.u8(..5) {
        0 => format!("error[E0425]: cannot find value `{ident}` in this scope\n  --> {path}:{line}:13"),
        1 => format!("{path}:{line}: SyntaxError: invalid syntax near `{ident}`"),
        2 => format!("thread '{ident}' panicked at {path}:{line}:5:\nassertion `left == right` failed"),
        3 => format!("{path}({line},7): error TS2304: Cannot find name '{}'.", camel(&ident)),
        _ => format!("FAIL {path}\n  expected {line}, received {} ({ident})", line + 1),
    }
}

/// What a person asks for.
pub fn request(names: &mut Names) -> String {
    let (a, b, path) = (names.ident(), names.ident(), names.path());
    match names.rng.u8(..14) {
        0 => format!(
            "The {} page takes forever when there are many rows. Can you find out why and fix it?",
            a.replace('_', " ")
        ),
        1 => format!(
            "Please add an endpoint that returns the {} of one account, with tests.",
            a.replace('_', " ")
        ),
        2 => format!(
            "There's a flaky test around `{a}`. It fails maybe once in thirty runs. Could you look into it?"
        ),
        3 => format!("I'd like `{a}` to accept a list instead of a single {b}."),
        4 => format!("Refactor {path}, it has grown too long. Split it where it makes sense."),
        5 => format!("why does `{a}` call `{b}` twice? looks wrong to me"),
        6 => format!(
            "Users report that the {} disappears after a reload. Here is what I know: it started last week, only in Firefox.",
            a.replace('_', " ")
        ),
        7 => format!("Upgrade the dependency behind `{a}` and fix whatever breaks."),
        8 => format!("Write the missing docs for `{a}`, a page at most."),
        9 => format!("can you make the output of `{a}` a bit easier to read"),
        10 => format!(
            "The build in CI is twice as slow as a month ago. Find the reason, {path} might be involved."
        ),
        11 => format!("Next: `{a}` should survive a restart. At the moment it forgets everything."),
        12 => format!("I need a small script that compares `{a}` with `{b}` and prints what differs."),
        _ => format!("Let's look at the error handling in {path}. Half of it is swallowed."),
    }
}

/// What a person says beside that; some of it reads like a fact and binds nobody.
pub fn aside(names: &mut Names) -> String {
    let (a, b) = (names.ident(), names.ident());
    let number = names.rng.u32(2..900);
    match names.rng.u8(..20) {
        0 => "No hurry with this one.".to_owned(),
        1 => format!("Maybe one day we should use {b} for that, but that's another story."),
        2 => format!("What if `{a}` was written in Go? Just thinking aloud."),
        3 => "I'm in meetings until three, so take your time.".to_owned(),
        4 => format!("I think it was {number} once, not sure any more."),
        5 => "Sorry for the mess in there, we inherited that part.".to_owned(),
        6 => format!(
            "Somebody at the conference said that you should never use `{a}`. No idea if that's true."
        ),
        7 => "Tell me if something is unclear.".to_owned(),
        8 => format!("In my last job we would have rejected `{a}` in review, ha."),
        9 => "The weather is terrible here by the way.".to_owned(),
        10 => format!("Could it be that `{a}` must be initialised first? I may be wrong."),
        11 => "Thanks for the last one, that looked good.".to_owned(),
        12 => format!("A colleague suggested {b} or maybe {a}, I have no opinion yet."),
        13 => "Take a look around first and tell me what you think.".to_owned(),
        14 => format!("There are about {number} of them, give or take."),
        15 => format!("Don't worry about `{a}`, that's on somebody else's desk."),
        16 => "You can take whatever approach you like here.".to_owned(),
        17 => "I had a quick go at it myself and gave up after an hour.".to_owned(),
        18 => format!("Is `{a}` even used any more?"),
        _ => "As always, small steps are fine.".to_owned(),
    }
}

/// What a person says to a result.
pub fn reaction(names: &mut Names) -> String {
    let reactions = [
        "Looks good, thanks!",
        "ok",
        "Great. On to the next one.",
        "hm, let me check that on my side first",
        "perfect",
        "Nice, merged.",
        "That works. Could you show me the diff once more?",
        "👍",
        "Good. Please run everything again.",
        "I don't fully get it yet, explain the second change please.",
        "go on",
    ];
    names.pick(&reactions).to_owned()
}

/// What an agent says between its calls.
pub fn progress(names: &mut Names) -> String {
    let (a, b, path) = (names.ident(), names.ident(), names.path());
    match names.rng.u8(..18) {
        0 => format!("Let me look at {path} first."),
        1 => format!("I'll search for the callers of `{a}`."),
        2 => format!("`{a}` is only called from `{b}`. Let me check that one as well."),
        3 => "Now the tests.".to_owned(),
        4 => format!("I could use `{a}` or `{b}` for this; let me see what the rest of the code does."),
        5 => "That compiles. Running the tests next.".to_owned(),
        6 => format!("Interesting: `{a}` already does half of it."),
        7 => format!("Let me check whether `{a}` might be the problem."),
        8 => "I need to see how this is configured.".to_owned(),
        9 => format!("The loop in `{a}` looks suspicious, but I want to be sure before I change anything."),
        10 => "Let me verify that with a quick run.".to_owned(),
        11 => format!("There may be an off-by-one in `{a}`; reading on."),
        12 => String::new(),
        13 => format!("I'll edit {path} now."),
        14 => "Checking the history of this file.".to_owned(),
        15 => format!("`{b}` should probably return early here. Trying that."),
        16 => "One moment, the output is long; I'll look at the end of it.".to_owned(),
        _ => format!("Next, the part in {path}."),
    }
}

/// How an agent ends a task.
pub fn closing(names: &mut Names) -> String {
    let (a, b, path) = (names.ident(), names.ident(), names.path());
    let number = names.rng.u32(2..60);
    match names.rng.u8(..9) {
        0 => format!("Done. `{a}` now does what you asked for, and all {number} tests pass."),
        1 => format!("I fixed it in {path}. The reason was that `{a}` ran before `{b}` was ready."),
        2 => format!(
            "Here is what I changed:\n\n- `{a}` returns early when there is nothing to do\n- `{b}` has a test\n- {path} is shorter\n\nEverything passes."
        ),
        3 => format!(
            "The slow part was `{a}`: it took {number} s of the total. It is down to a fraction of that."
        ),
        4 => "That's finished. Let me know if you want it differently.".to_owned(),
        5 => format!("`{a}` is split into three parts; `{b}` didn't need to change."),
        6 => format!("All green. {path} has the details, including an example."),
        7 => format!(
            "It calls it twice because `{b}` retries. I left that as it is and added a comment to `{a}`."
        ),
        _ => format!("The upgrade is in. Two calls of `{a}` had to be adapted, nothing else."),
    }
}
