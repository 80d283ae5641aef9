//! The page that shows sessions: its data, the access control of its server, and its rendering in a browser.

mod browser;
mod data;
mod server;
mod story;
