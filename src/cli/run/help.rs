//! What `epitome run` and the commands that are runs of one command say of themselves.

pub const HELP: &str = "\
epitome run: one prompt without an editor

  epitome run [OPTIONS] \"prompt\"
  git diff | epitome run \"review this\"      text on stdin follows the prompt
  epitome run -r compact --follow           what /compact does in an editor

  -r, --recipe RECIPE   run a recipe; the prompt is its arguments
      --attach FILE     send an image (png, jpeg, gif, webp) or a PDF with the prompt; may stand
                        several times (also --image FILE)
      --follow          go on with the newest session of this directory
      --resume ID       go on with a session; a unique beginning of its id is enough
                        (also --conversation-id ID, -c ID); it counts before --follow
      --model NAME      provider/name, for example anthropic/..., gemini/..., local/...
      --mode MODE       ask, accept_edits, read_only or full
      --json            one JSON object a line on stdout
      --standalone      do all in this process, also where a daemon runs
      --no-hooks        run no hooks
      --trust-hooks     run hooks that the repository brings without asking
      --recipe-dir DIR  look for recipes there, too (also --fragment-dirs DIR,DIR)
      --disable-auto-compact
                        compact only when asked, or when the provider refuses the length
      --compact-ratio R compact at this share of the window, from 0 to 1; 0 is never

Questions are asked on the terminal. Where there is none, what must be asked is not allowed.
Ctrl-C cancels what this run asked for, a second one ends the process at once. Where a daemon runs the
session may be open elsewhere, too; somebody else's turn goes on.

Exit codes: 0 the turn ended well, 1 it failed or a command was refused, 2 wrong usage, 130 cancelled.

With --json each line has a \"type\"; fields are only ever added:
  text, thinking   message, text (pieces, in order; those of one message belong together)
  tool_call        id, name, title, input
  permission       id, name, title, decision (allow_once, allow_always, reject), by (person, nobody)
  tool_result      id, status (completed, failed, denied, interrupted), text
  usage            used, size (tokens in context, the window), cost (US dollars of the session, where
                   known)
  notice           severity (info, warning, error), text
  compaction       entry, trigger (manual, overflow, threshold, must, hook), pre_tokens, post_tokens,
                   kept, masked, summarised (entries), quoted (messages of yours word for word), facts
                   (lines of tables computed from the log), left_out (entries without room),
                   fallback (why there is no model's summary)
  hook             hook, event, asked (what it asked for), verdict (nothing, done, refused, failed,
                   skipped), remarks (a list of texts); hooks that did and asked nothing have no line
  done             session, reason (end_turn, max_tokens, max_rounds, refusal, cancelled, failed),
                   usage (input, output, thinking, and of the input cache_read and cache_write) or
                   error and hint; of a command what came of it, below its name (compaction, undo,
                   redo, pin, unpin, history, rewind, checkpoints, permissions, rename); always the last line
";

pub const COMPACT_HELP: &str = "\
epitome compact: make a session short, as /compact does in an editor

  epitome compact                        the newest session of this directory
  epitome compact --resume ID            another one; also --conversation-id ID, -c ID
  epitome compact keep the parser notes  what the summary must not lose
  epitome compact above e40              only what stands above the entry e40
  epitome compact --dry-run              what would be kept, shown shorter, quoted and summarised,
                                         with tokens and prices; nothing is done, no model is asked
  epitome compact --dry-run --json       the same as one object

It is `epitome run -r compact --follow` and takes the same options. `epitome undo` takes it back.

Exit codes: 0 done or nothing to do, 1 it failed or was refused, 2 wrong usage, 130 cancelled.
";

/// The commands of a session that have a command line of their own, each with its lines of help.
pub const OWN: [(&str, &str); 9] = [
    (
        "undo",
        "\
epitome undo: take back what changed a session's history

  epitome undo       the newest compaction, or what a hook or a pinned text changed since
  epitome undo e12   an older one; what was said since stays
",
    ),
    (
        "redo",
        "\
epitome redo: bring again what was taken back

  epitome redo       what was taken back last
  epitome redo e12   another one
",
    ),
    (
        "history",
        "\
epitome history: what changed a session's history, and what can be undone now

  epitome history          newest first: what, who asked for it, tokens before and after
  epitome history --json   the same as one object
",
    ),
    (
        "pin",
        "\
epitome pin: keep something through every compaction as it is

  epitome pin                    what is pinned, and how much of the window it takes
  epitome pin e12                an entry; `epitome sessions show ID` has their numbers
  epitome pin \"never force push\"  some words, which the model is told, too
",
    ),
    (
        "unpin",
        "\
epitome unpin: let go of what was pinned

  epitome unpin e12   one entry
  epitome unpin all   all of them
",
    ),
    (
        "rewind",
        "\
epitome rewind: go back to before a turn, with the files that it changed

  epitome rewind                         the last turn, files and conversation
  epitome rewind e12                     the turn of this entry, and all behind it
  epitome rewind files                   the files alone; also conversation
  epitome rewind dry                     what it would do; nothing is done
  epitome rewind force                   also files that somebody else has changed since
  epitome rewind undo                    take the last rewind back

`epitome sessions rewind ID` does the same.
",
    ),
    (
        "checkpoints",
        "\
epitome checkpoints: the turns, newest first, with the files that each of them changed
",
    ),
    (
        "permissions",
        "\
epitome permissions: what may run without a question, and by which words of yours

  epitome permissions            the rules, and what is remembered of what you allowed
  epitome permissions forget 2   take the second of these back; also forget all
  epitome permissions keep 2     let it hold in later sessions of this workspace
",
    ),
    (
        "rename",
        "\
epitome rename: give a session another title

  epitome rename the broken build
",
    ),
];

/// What the help of each of them ends with.
pub const OWN_HELP: &str = "
They act on the newest session of this directory, or on one that is named:
  --resume ID   a unique beginning of its id is enough (also --conversation-id ID, -c ID)
  --json        what came of it, as one object
  --standalone  do all in this process, also where a daemon runs

Exit codes: 0 done or nothing to do, 1 refused or failed, 2 wrong usage.
";
