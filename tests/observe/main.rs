//! What helps a person to see how things stand, with the real binary: bug reports, completions and the man page,
//! and spans for a collector where the program is built for that.

mod bug_report;
mod command_line;
mod machine;
#[cfg(feature = "otel")]
mod otel;
