//! The calls of resident hooks to their session, over their pipe.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::refusal::HookRefusal;
use epitome_hooks::functions::BoxError;
use epitome_hooks::resident::HookServices;

/// Calls that may wait for the session; a hook that sends more is blocked.
const SERVICE_CALLS_MAX: usize = 64;

/// Receives the answer to a call; the hook may have given up on it.
pub type ServiceReply = oneshot::Sender<Result<Value, BoxError>>;

/// A call of a resident hook.
pub struct ServiceCall {
    pub hook: String,
    pub method: String,
    pub params: Value,
    pub answer: ServiceReply,
}

impl ServiceCall {
    /// A model call on behalf of another caller, under the same guards.
    pub(crate) fn of_model(by: String, params: Value, answer: ServiceReply) -> ServiceCall {
        ServiceCall { hook: by, method: "model.complete".to_owned(), params, answer }
    }
}

/// The channel from resident hooks to their session.
pub struct ServiceCalls(mpsc::Sender<ServiceCall>, mpsc::Receiver<ServiceCall>);

impl Default for ServiceCalls {
    fn default() -> ServiceCalls {
        let (sender, receiver) = mpsc::channel(SERVICE_CALLS_MAX);
        ServiceCalls(sender, receiver)
    }
}

impl ServiceCalls {
    pub(super) fn sender(&self) -> ServiceSender {
        ServiceSender(self.0.clone())
    }

    pub(super) async fn next(&mut self) -> Option<ServiceCall> {
        self.1.recv().await
    }
}

pub(super) struct ServiceSender(mpsc::Sender<ServiceCall>);

impl HookServices for ServiceSender {
    fn call<'a>(
        &'a self,
        hook: &'a str,
        method: &'a str,
        params: Value,
    ) -> BoxFuture<'a, Result<Value, BoxError>> {
        async move {
            let (answer, answered) = oneshot::channel();
            let call = ServiceCall { hook: hook.to_owned(), method: method.to_owned(), params, answer };
            self.0.send(call).await.map_err(|_| HookRefusal::Ending)?;
            answered.await.map_err(|_| HookRefusal::Ending)?
        }
        .boxed()
    }
}
