//! The control API: JSON-RPC 2.0 over a local socket, one message per line. `docs/builders/control.md` documents every
//! method.
//!
//! - `wire`: serves one connection; `lines`: its line reader.
//! - `params`, `fault`: strict parsing of parameters, and errors.
//! - `sessions`, `stored`, `prompts`, `listings`, `about`, `inspect`: the methods.
//! - `temporary_client`: a session client for the duration of one call; `state`: state shared by all connections.
//! - `queue`: a client's bounded queue of events; `limits`: time limits of calls.
//! - `client`: the client side.
//!
//! No method follows a session: that is what the Agent Client Protocol is for.

mod about;
pub mod client;
pub mod fault;
mod inspect;
pub mod limits;
mod lines;
mod listings;
mod params;
mod prompts;
mod queue;
mod sessions;
mod state;
mod stored;
mod temporary_client;
pub(crate) mod wire;

use std::future::Future;
use std::sync::{Arc, LazyLock};

use jsonrpsee::{Extensions, Methods, RpcModule};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

pub use client::ControlClient;
pub use params::EnvironmentObject;
pub(crate) use sessions::fold;
pub use state::ControlState;
pub use wire::{admit, serve};

use crate::Daemon;
use fault::{Fault, FaultKind};
use wire::Caller;

type MethodResult = Result<Value, Fault>;

/// The methods, listed or suggested when a caller names an unknown one.
pub const METHODS: [&str; 27] = [
    "status",
    "stop",
    "metrics",
    "sessions.list",
    "sessions.show",
    "sessions.entries",
    "sessions.timeline",
    "sessions.entry",
    "sessions.cancel",
    "sessions.set",
    "sessions.compact",
    "sessions.undo",
    "sessions.redo",
    "sessions.rewind",
    "sessions.checkpoints",
    "sessions.rename",
    "sessions.search",
    "sessions.fork",
    "sessions.export",
    "sessions.import",
    "sessions.delete",
    "recipes.list",
    "recipes.show",
    "hooks.list",
    "hooks.trail",
    "models.list",
    "inspect.open",
];

/// Methods that followed a session, each with the request of the Agent Client Protocol that replaces it.
pub const REPLACED: [(&str, &str); 6] = [
    ("sessions.new", "`session/new`"),
    ("sessions.prompt", "`session/prompt`"),
    ("sessions.tail", "`session/resume` and the updates that follow it"),
    ("sessions.untail", "`session/close`"),
    ("sessions.decide", "the response to `session/request_permission`"),
    ("sessions.answer", "the response to `elicitation/create`"),
];

/// The table of all methods.
pub static METHOD_TABLE: LazyLock<Methods> = LazyLock::new(|| {
    let mut table = MethodTable { module: RpcModule::new(()) };
    about::register(&mut table);
    sessions::register(&mut table);
    stored::register(&mut table);
    prompts::register(&mut table);
    listings::register(&mut table);
    inspect::register(&mut table);
    table.module.into()
});

const NAMED_ONCE: &str = "each method has a name of its own";

struct MethodTable {
    module: RpcModule<()>,
}

impl MethodTable {
    /// Registers a method that reads the disk. If its thread hangs there, the call still ends at its time
    /// limit.
    fn blocking<P: DeserializeOwned + Send + 'static>(
        &mut self,
        name: &'static str,
        act: fn(&Arc<Daemon>, P) -> MethodResult,
    ) {
        let entered = self.module.register_async_method(name, move |params, _, extensions| async move {
            let params = params::read(name, params.as_str())?;
            let daemon = caller(&extensions)?.daemon;
            let (limits, acting) = (daemon.control.limits, daemon.clone());
            limits.hold(name, params::spawn_blocking(&daemon, move || act(&acting, params))).await
        });
        entered.expect(NAMED_ONCE);
    }

    /// Registers an asynchronous method.
    fn waiting<P, Done>(&mut self, name: &'static str, act: fn(Arc<Daemon>, P, Caller) -> Done)
    where
        P: DeserializeOwned + Send + 'static,
        Done: Future<Output = MethodResult> + Send + 'static,
    {
        let entered = self.module.register_async_method(name, move |params, _, extensions| async move {
            let params = params::read(name, params.as_str())?;
            let caller = caller(&extensions)?;
            let (limits, daemon) = (caller.daemon.control.limits, caller.daemon.clone());
            limits.hold(name, act(daemon, params, caller)).await
        });
        entered.expect(NAMED_ONCE);
    }
}

fn caller(extensions: &Extensions) -> Result<Caller, Fault> {
    let caller = extensions.get::<Caller>().cloned();
    caller.ok_or_else(|| Fault::new(FaultKind::Internal, "the call has no connection"))
}

/// The fields of an object.
fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn json_of(value: &impl serde::Serialize) -> MethodResult {
    serde_json::to_value(value).map_err(|error| Fault::new(FaultKind::Internal, error.to_string()))
}
