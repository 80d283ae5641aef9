//! Tests of the services that sessions use, each without a session: hooks, providers, the store, tools, the sandbox.

mod boundary_random;
mod checkpoints;
mod commands;
mod hooks_claude;
mod hooks_find;
mod hooks_run;
mod import;
mod irregular_files;
mod providers;
mod providers_network;
mod recordings;
mod sandbox;
mod session_library;
mod store;
mod tools;
