//! Observability of the real binary: bug reports, completions and the man page, and the OpenTelemetry export
//! of builds that include it.

mod bug_report;
mod command_line;
mod otel;
