//! Tests of complete sessions in this process: by their commands, over ACP, by the control API and in the inspector.

mod acp_connection;
mod control;
mod failing_disk;
mod full_disk;
mod inspect;
mod logged;
mod redteam;
mod session;
mod world;
