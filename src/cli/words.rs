//! The words of the command line in one table: commands, flags and values, for completions and the man page.
//! Arguments are not read by it; a test holds it to what each `--help` says.

/// A command, and the commands below it.
#[derive(Clone, Copy, Debug)]
pub struct Word {
    pub name: &'static str,
    pub about: &'static str,
    pub flags: &'static [&'static [Flag]],
    /// What stands behind it, by its name in the help; several for `NAME...`.
    pub values: &'static [&'static str],
    pub below: &'static [Word],
}

#[derive(Clone, Copy, Debug)]
pub struct Flag {
    pub long: &'static str,
    pub short: Option<char>,
    /// The name of its value; `None` for one that has none.
    pub value: Option<&'static str>,
    pub about: &'static str,
}

/// Names of values that are a session's id.
pub const IDS: [&str; 2] = ["ID", "SESSION"];

const fn flag(long: &'static str, about: &'static str) -> Flag {
    Flag { long, short: None, value: None, about }
}

const fn option(long: &'static str, value: &'static str, about: &'static str) -> Flag {
    Flag { long, short: None, value: Some(value), about }
}

const fn short(short: char, flag: Flag) -> Flag {
    Flag { short: Some(short), ..flag }
}

const fn word(
    name: &'static str,
    values: &'static [&'static str],
    flags: &'static [&'static [Flag]],
    about: &'static str,
) -> Word {
    Word { name, about, flags, values, below: &[] }
}

const fn group(name: &'static str, below: &'static [Word], about: &'static str) -> Word {
    Word { name, about, flags: &[], values: &[], below }
}

const JSON: &[Flag] = &[flag("json", "print JSON")];

const DIRS: &[Flag] = &[
    option("recipe-dir", "DIR", "look for recipes there, too"),
    option("fragment-dirs", "DIRS", "the same, several with commas between"),
];

/// What holds above all configuration.
const OVERRIDES: &[Flag] = &[
    option("model", "NAME", "provider/name"),
    option("mode", "MODE", "what may be done without a question"),
    flag("no-hooks", "run no hooks"),
    flag("trust-hooks", "run what a repository brings without asking"),
    flag("disable-auto-compact", "compact only when asked, or when the provider refuses the length"),
    option("compact-ratio", "R", "compact at this share of the window, from 0 to 1; 0 is never"),
];

const RUN: &[Flag] = &[
    short('r', option("recipe", "RECIPE", "run a recipe; the prompt is its arguments")),
    option("attach", "FILE", "send an image or a PDF with the prompt"),
    option("image", "FILE", "the same"),
    flag("follow", "go on with the newest session of this directory"),
];

const RESUME: &[Flag] = &[
    option("resume", "ID", "go on with a session; a unique beginning of its id is enough"),
    short('c', option("conversation-id", "ID", "the same")),
];

const DRY: &[Flag] = &[flag("dry-run", "tell what would be done, and do nothing")];

const STANDALONE: &[Flag] = &[flag("standalone", "do all in this one process, without a daemon")];

const OWN: &[&[Flag]] = &[RESUME, STANDALONE, JSON];

const CWD: &[Flag] =
    &[option("cwd", "DIR", "only those of this directory, or the directory of what is imported")];

const FORMAT: &[Flag] = &[option("format", "FORMAT", "how it is written")];

const YES: &[Flag] = &[flag("yes", "don't ask")];

const SESSIONS: &[Word] = &[
    word("list", &[], &[JSON, CWD], "all of them, newest first"),
    word(
        "show",
        &["ID"],
        &[&[flag("full", "with whole outputs and thinking")], FORMAT, JSON],
        "who said what",
    ),
    word(
        "search",
        &["WORDS"],
        &[&[flag("regex", "a regular expression"), option("limit", "N", "so many at most")], CWD, JSON],
        "find texts in all sessions",
    ),
    word("tail", &["ID"], &[&[option("from", "ENTRY", "from this entry on")], JSON], "what happens in it"),
    word(
        "fork",
        &["ID"],
        &[&[option("at", "ENTRY", "up to this entry")], JSON],
        "a new session that goes on from it",
    ),
    word("rename", &["ID", "TITLE"], &[JSON], "give it another title"),
    word("redo", &["ID", "ENTRY"], &[JSON], "bring again what was taken back"),
    word("undo", &["ID", "ENTRY"], &[JSON], "take back a compaction or other change of its history"),
    word("checkpoints", &["ID"], &[JSON], "the turns with the files that each of them changed"),
    word(
        "rewind",
        &["ID", "ENTRY"],
        &[
            &[
                flag("files", "the files alone"),
                flag("conversation", "the conversation alone"),
                flag("dry-run", "say what it would do"),
                flag("force", "also files that somebody else has changed since"),
                flag("undo", "take the last rewind back"),
            ],
            JSON,
        ],
        "go back to before a turn",
    ),
    word(
        "export",
        &["ID", "FILE"],
        &[
            &[option("all", "DIR", "all sessions, into this directory"), flag("markdown", "for reading")],
            FORMAT,
            JSON,
        ],
        "write it into a file",
    ),
    word(
        "import",
        &["FILE"],
        &[
            &[
                option("from", "AGENT", "of another agent, where its sessions lie"),
                flag("all", "of all directories"),
                flag("again", "also what is here already"),
                flag("keep-id", "with the id that it had"),
            ],
            CWD,
            JSON,
        ],
        "read it from a file, or from another agent's sessions",
    ),
    word("lost", &["ID"], &[JSON], "what another agent's compaction no longer mentions"),
    word("delete", &["ID"], &[YES, JSON], "for good"),
];

const RECIPES: &[Word] = &[
    word("list", &[], &[DIRS, JSON], "all of them, with where they come from"),
    word("show", &["NAME"], &[DIRS, JSON], "what a recipe says of itself, and its file"),
    word("render", &["NAME", "TEXT"], &[DIRS, JSON], "the text that it would send"),
    word("check", &["FILE"], &[DIRS, JSON], "what is wrong with recipe files"),
];

const HOOKS: &[Word] = &[
    word("list", &[], &[JSON], "the hooks of this directory in their order"),
    word("trust", &["NAME"], &[&[flag("never", "refuse them")], YES], "let hooks of this repository run"),
    word(
        "test",
        &["NAME", "EVENT"],
        &[&[option("payload", "FILE", "what it is given")], JSON],
        "run one with a sample payload",
    ),
    word(
        "log",
        &["SESSION"],
        &[&[flag("newest", "the newest session of this directory")], JSON],
        "what hooks did in a session",
    ),
];

const DAEMON: &[Word] = &[
    word("status", &[], &[JSON], "whether one runs, and what it holds"),
    word("stop", &[], &[&[flag("force", "also while a turn runs")]], "end it"),
    word(
        "logs",
        &[],
        &[&[
            short('f', flag("follow", "go on with what comes")),
            short('n', option("lines", "LINES", "so many of the last ones")),
        ]],
        "the last lines of its log",
    ),
];

const COMPLETIONS: &[Word] = &[
    word("bash", &[], &[], "for bash"),
    word("zsh", &[], &[], "for zsh"),
    word("fish", &[], &[], "for fish"),
];

/// All commands.
pub const WORDS: &[Word] = &[
    word(
        "acp",
        &[],
        &[OVERRIDES, DIRS, &[option("transcript", "FILE", "write down what crosses the wire")], STANDALONE],
        "speak the Agent Client Protocol on stdin and stdout; this is what editors launch",
    ),
    word(
        "run",
        &["PROMPT"],
        &[RUN, RESUME, STANDALONE, OVERRIDES, DIRS, JSON],
        "one prompt without an editor",
    ),
    word(
        "compact",
        &["FOCUS"],
        &[RUN, RESUME, STANDALONE, DRY, OVERRIDES, DIRS, JSON],
        "make a session short",
    ),
    word("undo", &["ENTRY"], OWN, "take back what changed a session's history"),
    word("redo", &["ENTRY"], OWN, "bring again what was taken back"),
    word("history", &[], OWN, "what changed a session's history"),
    word("pin", &["TEXT"], OWN, "keep something through every compaction as it is"),
    word("unpin", &["ENTRY"], OWN, "let go of what was pinned"),
    word("rewind", &["ENTRY"], OWN, "go back to before a turn, with the files that it changed"),
    word("checkpoints", &[], OWN, "the turns with the files that each of them changed"),
    word("permissions", &[], OWN, "what may run without a question, and how it is taken back"),
    word("rename", &["TITLE"], OWN, "give a session another title"),
    group("recipes", RECIPES, "the slash commands of this directory"),
    group("sessions", SESSIONS, "what was said, and where"),
    group("daemon", DAEMON, "the one process behind all windows"),
    word(
        "models",
        &["PROVIDER"],
        &[
            &[flag("all", "also those of providers without a key"), flag("refresh", "ask the providers now")],
            JSON,
        ],
        "which models can be chosen, what they hold and cost",
    ),
    group("hooks", HOOKS, "what runs at moments of a session"),
    word(
        "doctor",
        &[],
        &[
            &[
                flag("repair", "go on with what stands before a damage"),
                flag("compact", "write the index anew"),
                option("backup", "DIR", "first copy all sessions into it"),
            ],
            JSON,
        ],
        "is all well, and what to do if not",
    ),
    word(
        "bug-report",
        &["FILE"],
        &[&[option("session", "ID", "also how this session is built")]],
        "one text file that tells how things stand",
    ),
    word(
        "inspect",
        &["SESSION"],
        &[&[flag("no-open", "print the address and open no browser")], JSON],
        "look at sessions in a browser",
    ),
    word("check", &["FILE"], &[JSON], "run protocol fixtures against any agent"),
    word("demo", &[], &[&[flag("fast", "without pauses for reading")]], "see it work without a key"),
    group("completions", COMPLETIONS, "completions for a shell, on stdout"),
    word("man", &[], &[], "this page, on stdout"),
];
