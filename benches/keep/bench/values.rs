//! What facts are about: choices with reasons, ideas that failed, tasks, names of things, values.

use super::plant::Voice;
use super::words::Names;

pub const WHATS_OF_FILES: &[&str] = &[
    "retry middleware",
    "rate limiter",
    "login form",
    "invoice template",
    "migration runner",
    "feature switches",
    "health check",
    "metrics exporter",
    "session cleanup",
    "webhook receiver",
    "search index settings",
    "permission table",
    "release script",
    "upload handler",
    "fixture loader",
    "mail renderer",
];

/// A choice, what it was chosen over, and why.
pub const DECISIONS: &[(&str, &str, &str)] = &[
    (
        "a bounded queue in `{ident}`",
        "an unbounded channel",
        "a slow consumer would otherwise eat {num} MB before anyone notices",
    ),
    (
        "cursor pagination for `{ident}`",
        "offset pagination",
        "offsets skip rows whenever somebody deletes during the export",
    ),
    (
        "storing money as integer cents in `{ident}`",
        "floats",
        "the auditors found rounding differences of {num} euros last quarter",
    ),
    (
        "`{ident}` as a separate process",
        "a thread",
        "a crash in the image decoder must not take the editor down",
    ),
    (
        "advisory locks for `{ident}`",
        "a Redis lock",
        "the Redis failover lost two locks during the March drill",
    ),
    (
        "a materialised view behind `{ident}`",
        "live joins",
        "the dashboard query takes {num} ms on the largest tenant",
    ),
    ("UUIDv7 keys in `{ident}`", "serial ids", "offline clients have to create rows before they can sync"),
    ("server-sent events for `{ident}`", "websockets", "the corporate proxy strips upgrade headers"),
    (
        "the outbox pattern in `{ident}`",
        "publishing directly",
        "messages vanished whenever the broker restarted mid-transaction",
    ),
    (
        "keeping `{ident}` in C",
        "a Rust rewrite",
        "the certification covers exactly this compiler and costs {num} hours to redo",
    ),
    (
        "one table per region for `{ident}`",
        "a region column",
        "data residency rules forbid mixing customers on one disk",
    ),
    (
        "optimistic locking in `{ident}`",
        "row locks",
        "editors keep a form open over lunch and block everybody else",
    ),
    (
        "snapshots every {num} events in `{ident}`",
        "replaying from zero",
        "cold starts took eleven minutes in the benchmark",
    ),
    (
        "parsing with `{ident}`",
        "a regex",
        "nested quotes broke the regular expression in three customer files",
    ),
    (
        "a feature branch deploy for `{ident}`",
        "a flag",
        "the flag service adds latency to every single request",
    ),
    ("compressing `{ident}` with zstd", "gzip", "the archive has to fit on the {num} GB appliance disk"),
    ("polling in `{ident}`", "inotify", "the network share never delivers change notifications"),
    ("vendoring `{ident}`", "the upstream package", "upstream yanked two releases without warning this year"),
    (
        "hashing with argon2 in `{ident}`",
        "bcrypt",
        "the pentest report demands memory-hard hashing for staff accounts",
    ),
    (
        "a single writer for `{ident}`",
        "sharded writers",
        "conflicting merges corrupted {num} documents in the pilot",
    ),
];

/// What was not done, and why.
pub const REJECTED: &[(&str, &str)] = &[
    ("caching the permissions in `{ident}`", "revoked users kept their access for {num} seconds"),
    ("moving `{ident}` to a lambda", "the cold start alone exceeds the whole latency budget"),
    ("a global mutex around `{ident}`", "throughput dropped by half under four workers"),
    ("generating `{ident}` at build time", "the cross compile for the appliance has no network access"),
    (
        "LISTEN/NOTIFY for `{ident}`",
        "the connection pooler runs in transaction mode and swallows notifications",
    ),
    ("mocking `{ident}` in the integration tests", "the mock hid the encoding bug for {num} days"),
    ("a soft delete flag in `{ident}`", "every report silently counted deleted customers"),
    ("splitting `{ident}` into two crates", "the orphan rule forces wrapper types everywhere"),
    ("retrying inside `{ident}`", "the payment provider charges twice on a timeout"),
    ("using a bloom filter for `{ident}`", "false positives would lock out paying users"),
    ("memory mapping `{ident}`", "truncation by the log rotator raises SIGBUS"),
    ("a cron job for `{ident}`", "two schedulers ran it twice after the daylight saving switch"),
    ("letting `{ident}` fall back to the old API", "the old endpoint shuts down in {num} days"),
    ("pre-rendering `{ident}`", "prices change while the page sits in the CDN"),
    ("a trigger on `{ident}`", "replication replays triggers and doubles the counters"),
    ("downgrading the driver of `{ident}`", "the older version leaks a file handle per query"),
    ("storing `{ident}` in the browser", "Safari evicts it after seven days without a visit"),
    ("running `{ident}` under qemu", "emulated timers drift and the watchdog fires"),
    ("batching writes in `{ident}`", "a power cut loses up to {num} confirmed orders"),
    ("wildcard certificates for `{ident}`", "the customer's scanner flags them as a critical finding"),
];

/// What is still to be done.
pub const TASKS: &[&str] = &[
    "backfill `{ident}` for the tenants created before March",
    "write a rollback script for `{ident}`",
    "document the new header in `{ident}`",
    "delete the compatibility shim from `{ident}`",
    "add a regression test for the empty upload in `{ident}`",
    "raise the alert threshold of `{ident}` to {num}",
    "port `{ident}` to the new logger",
    "regenerate the client for `{ident}` with the released schema",
    "ask security to review the signature check in `{ident}`",
    "measure `{ident}` again with the production dataset",
    "translate the error messages of `{ident}` into French",
    "rename the misleading parameter of `{ident}`",
    "turn on the strict mode of `{ident}` in staging",
    "move the secrets of `{ident}` into the vault",
    "remove the debug output from `{ident}`",
    "update the runbook for `{ident}` with the failover steps",
    "split the flaky test of `{ident}` into two",
    "enable compression for `{ident}` on the backup path",
    "replace the deprecated calls in `{ident}` before the upgrade",
    "check `{ident}` against the accessibility guidelines",
];

/// What a value is of, and what it looks like.
pub const SUBJECTS: &[(&str, Unit)] = &[
    ("the connection pool size (`{ident}`)", Unit::Count),
    ("the timeout in `{ident}`", Unit::Milliseconds),
    ("the port of `{ident}`", Unit::Port),
    ("the version of `{ident}`", Unit::Version),
    ("`{ident}`", Unit::Count),
    ("the batch size of `{ident}`", Unit::Count),
    ("the polling interval of `{ident}`", Unit::Milliseconds),
    ("the memory limit for `{ident}`", Unit::Megabytes),
    ("the target host of `{ident}`", Unit::Host),
    ("the pinned release of `{ident}`", Unit::Version),
    ("the listen port for `{ident}`", Unit::Port),
    ("the upload limit in `{ident}`", Unit::Megabytes),
    ("the grace period of `{ident}`", Unit::Milliseconds),
    ("the primary for `{ident}`", Unit::Host),
];

#[derive(Clone, Copy, Debug)]
pub enum Unit {
    Count,
    Milliseconds,
    Megabytes,
    Port,
    Version,
    Host,
}

impl Unit {
    /// A value without its unit.
    pub fn value(self, names: &mut Names) -> String {
        let rng = &mut names.rng;
        match self {
            Unit::Count => (rng.u32(12..99) * 8).to_string(),
            Unit::Milliseconds => (rng.u32(5..190) * 50).to_string(),
            Unit::Megabytes => (rng.u32(3..60) * 64).to_string(),
            Unit::Port => rng.u32(3100..9900).to_string(),
            Unit::Version => format!("{}.{}.{}", rng.u32(1..9), rng.u32(10..40), rng.u32(0..9)),
            Unit::Host => {
                let place = names.pick(&["fra", "ams", "iad", "sin", "gru", "syd"]);
                format!("{place}-{:02}", names.rng.u32(1..60))
            }
        }
    }

    pub fn shown(self, value: &str) -> String {
        match self {
            Unit::Milliseconds => format!("{value} ms"),
            Unit::Megabytes => format!("{value} MB"),
            Unit::Count | Unit::Port | Unit::Version | Unit::Host => value.to_owned(),
        }
    }
}

/// What something is called, and its name.
pub fn identifier(names: &mut Names) -> (&'static str, String) {
    let ident = names.planted_ident();
    let hex = names.planted_hex(12);
    match names.rng.u8(..12) {
        0 => ("feature flag", format!("{}-{}", ident.replace('_', "-"), names.rng.u32(2..9))),
        1 => (
            "tracking ticket",
            format!("{}-{}", names.pick(&["PAY", "OPS", "CORE", "WEB"]), names.rng.u32(1000..9999)),
        ),
        2 => ("offending commit", hex),
        3 => ("failing request id", format!("req_{hex}")),
        4 => ("backup bucket", format!("s3://{}-{}", ident.replace('_', "-"), &hex[..4])),
        5 => ("Kafka topic", format!("{}.v{}", ident.replace('_', "."), names.rng.u32(2..9))),
        6 => ("environment variable", format!("{}_URL", ident.to_uppercase())),
        7 => ("service account", format!("svc-{}", ident.replace('_', "-"))),
        8 => ("deployment id", format!("dpl_{hex}")),
        9 => ("latency metric", format!("{ident}_seconds_total")),
        10 => ("database role", format!("{ident}_ro")),
        _ => ("tenant id", format!("ten_{hex}")),
    }
}

/// The words around an error that somebody quotes.
pub fn around_error(names: &mut Names, voice: Voice, line: &str) -> String {
    match voice {
        Voice::Person => match names.rng.u8(..3) {
            0 => format!("I get this since this morning and it's still there:\n\n    {line}\n"),
            1 => format!("QA sees the following on their machines, we don't know why yet:\n```\n{line}\n```"),
            _ => format!("it dies with\n{line}\nany idea?"),
        },
        Voice::Agent => match names.rng.u8(..3) {
            0 => format!("The nightly run still fails, and I can't reproduce it here:\n\n```\n{line}\n```"),
            1 => format!("One failure is left that I have not solved: `{line}`"),
            _ => format!("In the CI log I see this, which is unexplained so far:\n\n    {line}\n"),
        },
        Voice::Tool => line.to_owned(),
    }
}
