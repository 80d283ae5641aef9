//! OAuth 2.1 login to remote servers, through the SDK: the user opens a link, the browser is redirected to a
//! loopback listener, and the tokens are stored in a private file.
//!
//! Tokens exist only in that file, in memory and on the wire to their server. The SDK refreshes them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationRequest, CredentialStore, OAuthHttpClient,
    OAuthHttpClientFuture, OAuthHttpRequest, OAuthState, StoredCredentials,
};
use tokio::sync::mpsc;

use super::cache::digest;
use super::{McpContext, McpEvent};
use epitome_files::atomic_file::replace_in_private_directory;
use epitome_provider::http::Http;
use epitome_provider::loopback::{RedirectError, RedirectListener, has};
use epitome_tools::question::{QuestionKind, QuestionReply, QuestionSender, UserQuestion};

/// Time limit for the user to log in.
const LOGIN_TIME_MAX: Duration = Duration::from_secs(10 * 60);
/// Timeout of one request to the authorization server.
const EXCHANGE_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum bytes of its response.
const EXCHANGE_BYTES_MAX: usize = 1024 * 1024;
/// Maximum bytes of a token file.
const FILE_BYTES_MAX: u64 = 256 * 1024;
/// Redirect path.
const CALLBACK: &str = "/callback";

/// An authorization manager with the stored tokens of a server; `None` if there are no usable tokens.
pub async fn stored_login(url: &str, context: &McpContext) -> Option<AuthorizationManager> {
    if !file_of(&context.logins, url).exists() {
        return None;
    }
    let mut manager = manager(url, context, None).await.ok()?;
    manager.initialize_from_store().await.ok()?.then_some(manager)
}

async fn manager(
    url: &str,
    context: &McpContext,
    origins: Option<Arc<LoginOrigins>>,
) -> Result<AuthorizationManager, AuthError> {
    let exchange = Arc::new(Exchange { http: context.http.clone(), origins });
    let mut manager = AuthorizationManager::new_with_oauth_http_client(url, exchange).await?;
    manager.set_credential_store(TokenFile(file_of(&context.logins, url)));
    Ok(manager)
}

/// Why a login failed. The text completes a sentence and contains no secrets.
#[derive(Debug, thiserror::Error)]
pub enum LoginError {
    #[error(transparent)]
    Redirect(#[from] RedirectError),
    #[error("its login is at an address without https")]
    NotHttps,
    #[error("nobody logged in within {} minutes", LOGIN_TIME_MAX.as_secs() / 60)]
    Late,
    #[error("you declined the login")]
    Declined,
    #[error("its login is with {0}, and you have not agreed to that; `epitome mcp login` asks in a terminal")]
    OtherOrigin(String),
    #[error("{what}: {}", plain(source))]
    Auth { what: &'static str, source: Box<AuthError> },
}

impl LoginError {
    fn of(what: &'static str) -> impl FnOnce(AuthError) -> LoginError {
        move |source| LoginError::Auth { what, source: Box::new(source) }
    }
}

/// Asks the user to log in and waits for the login.
pub async fn login(
    name: &str,
    url: &str,
    challenge: Option<String>,
    context: &McpContext,
    questions: &QuestionSender,
    news: &mpsc::Sender<McpEvent>,
) -> Result<(), LoginError> {
    let listener = RedirectListener::open(CALLBACK).await?;
    let origins = Arc::new(LoginOrigins::new(name, url, questions));
    let begun = async {
        let manager = manager(url, context, Some(origins.clone())).await?;
        let mut state = OAuthState::Unauthorized(manager);
        let mut request = AuthorizationRequest::new(listener.url()).with_client_name("Epitome");
        if let Some(challenge) = challenge {
            request = request.with_challenge(challenge);
        }
        state.start_authorization(request).await?;
        let link = state.get_authorization_url().await?;
        Ok::<_, AuthError>((state, link))
    };
    let begun = begun.await.map_err(|error| origins.explain("its login cannot be started", error));
    let (mut state, link) = begun?;
    if !is_private(&link) {
        return Err(LoginError::NotHttps);
    }
    // The user sees that page.
    origins.agree(&link);
    let id = format!("login_{:016x}", fastrand::u64(..));
    let shown = show(name, link, id.clone(), questions, news);
    let back =
        tokio::time::timeout(LOGIN_TIME_MAX, listener.redirected(|query| has(query, &["code", "state"])));
    tokio::pin!(shown);
    tokio::pin!(back);
    let mut is_shown = false;
    let address = loop {
        tokio::select! {
            address = &mut back => break address.map_err(|_| LoginError::Late)??,
            is_opened = &mut shown, if !is_shown => match is_opened {
                // Opening the link does not complete the login.
                true => is_shown = true,
                false => return Err(LoginError::Declined),
            },
        }
    };
    let done = state.handle_callback_url(&address).await;
    questions.done(id).await;
    done.map_err(|error| origins.explain("its login failed", error))
}

/// Whether an address is encrypted or of this machine, and names no user.
fn is_private(link: &str) -> bool {
    let Ok(address) = link.parse::<http::Uri>() else { return false };
    let is_of_user = address.authority().is_none_or(|authority| authority.as_str().contains('@'));
    let is_local = ["127.0.0.1", "localhost", "[::1]"].contains(&address.host().unwrap_or_default());
    !is_of_user
        && (address.scheme_str() == Some("https") || (address.scheme_str() == Some("http") && is_local))
}

/// Shows the link, in the client if it supports that. Returns `false` if the user declines.
async fn show(
    name: &str,
    link: String,
    id: String,
    questions: &QuestionSender,
    news: &mpsc::Sender<McpEvent>,
) -> bool {
    let message = format!("The MCP server {name} wants you to log in.");
    if questions.shows().urls {
        let wants = QuestionKind::Url { url: link.clone(), id };
        match questions.ask(UserQuestion { message: message.clone(), wants, call: None }).await {
            QuestionReply::Accepted(_) | QuestionReply::TimedOut => return true,
            QuestionReply::Declined => return false,
            // Cancelling a turn withdraws its questions, but the link remains valid.
            QuestionReply::Cancelled | QuestionReply::Unable => {}
        }
    }
    drop(news.send(McpEvent::Remark(format!("{message} Open this link: {link}"))).await);
    true
}

/// Describes an error without quoting responses, which may repeat what was sent.
fn plain(error: &AuthError) -> String {
    match error {
        AuthError::NoAuthorizationSupport => "it offers no login with OAuth".to_owned(),
        AuthError::PkceUnsupported => "its login is not safe: it does not support PKCE".to_owned(),
        AuthError::RegistrationFailed(_) => {
            "it rejects the registration of new clients; configure an API key for it".to_owned()
        }
        AuthError::AuthorizationServerMismatch { .. } => {
            "its authorization server identifies itself as another one".to_owned()
        }
        AuthError::TokenExchangeFailed(_) => "the authorization code was rejected".to_owned(),
        AuthError::CredentialStoreError(why) => why.clone(),
        _ => "its authorization server could not be found".to_owned(),
    }
}

// ── The authorization server ───────────────────────────────────────────────────────────────────────

/// Sends OAuth requests over the session's network. Redirects are not followed.
struct Exchange {
    http: Http,
    /// Where registrations and codes may go; `None` for a stored login, to which the user has agreed.
    origins: Option<Arc<LoginOrigins>>,
}

/// The origins to which a login may send something: that of the server, that of the login's page, and those that the user
/// agrees to. A server chooses these addresses, which may be of another service.
struct LoginOrigins {
    name: String,
    questions: QuestionSender,
    agreed: Mutex<Vec<String>>,
    refused: Mutex<Option<String>>,
}

impl LoginOrigins {
    fn new(name: &str, url: &str, questions: &QuestionSender) -> LoginOrigins {
        let (agreed, refused) = (Mutex::new(vec![origin(url)]), Mutex::default());
        LoginOrigins { name: name.to_owned(), questions: questions.clone(), agreed, refused }
    }

    fn agree(&self, address: &str) {
        self.agreed.lock().push(origin(address));
    }

    async fn check(&self, address: &str) -> io::Result<()> {
        let origin = origin(address);
        if self.agreed.lock().contains(&origin) {
            return Ok(());
        }
        let message = format!(
            "To log you in, the MCP server {} uses {origin}, which is another address than its own. Do you agree?",
            self.name
        );
        let question = UserQuestion { message, wants: QuestionKind::consent(), call: None };
        if let QuestionReply::Accepted(_) = self.questions.ask(question).await {
            self.agreed.lock().push(origin);
            return Ok(());
        }
        *self.refused.lock() = Some(origin);
        Err(io::Error::other("the user has not agreed to the address"))
    }

    fn explain(&self, what: &'static str, error: AuthError) -> LoginError {
        self.refused.lock().take().map_or_else(|| LoginError::of(what)(error), LoginError::OtherOrigin)
    }
}

/// Scheme, host and port of an address.
fn origin(address: &str) -> String {
    let address = address.parse::<http::Uri>().unwrap_or_default();
    let port = address.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{}://{}{port}", address.scheme_str().unwrap_or_default(), address.host().unwrap_or_default())
}

impl OAuthHttpClient for Exchange {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            if let Some(origins) =
                self.origins.as_ref().filter(|_| request.request.method() != http::Method::GET)
            {
                origins.check(&request.request.uri().to_string()).await?;
            }
            let answer = self.http.exchange(request.request, EXCHANGE_BYTES_MAX, EXCHANGE_TIME_MAX).await;
            answer.map_err(|why| io::Error::other(why).into())
        })
    }
}

// ── The token file ─────────────────────────────────────────────────────────────────────────────────

/// The path of a server's token file. It is named by a digest, because the URL may contain a key.
fn file_of(folder: &Path, url: &str) -> PathBuf {
    folder.join(format!("{}.json", digest(url)))
}

/// Removes the stored registration and tokens of a server.
pub async fn forget(url: &str, context: &McpContext) -> Result<(), LoginError> {
    TokenFile(file_of(&context.logins, url))
        .clear()
        .await
        .map_err(LoginError::of("its stored login cannot be removed"))
}

/// Removes the stored tokens of a server; returns whether there were any. Blocks on disk I/O.
pub fn log_out(logins: &Path, url: &str) -> io::Result<bool> {
    removed(&file_of(logins, url))
}

/// Removes a file; returns whether it existed.
fn removed(file: &Path) -> io::Result<bool> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether a server's tokens are stored. Blocks on disk I/O.
pub fn is_logged_in(logins: &Path, url: &str) -> bool {
    file_of(logins, url).exists()
}

/// One server's tokens, in a file that only the user can read.
struct TokenFile(PathBuf);

#[async_trait]
impl CredentialStore for TokenFile {
    async fn load(&self) -> Result<Option<StoredCredentials>, AuthError> {
        let path = self.0.clone();
        on_disk(move || match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            Ok(file) if file.len() > FILE_BYTES_MAX => Err(io::Error::other("it is too large")),
            // A damaged file counts as missing: the user logs in again.
            Ok(_) => Ok(serde_json::from_slice(&fs::read(&path)?).ok()),
        })
        .await
    }

    async fn save(&self, credentials: StoredCredentials) -> Result<(), AuthError> {
        let path = self.0.clone();
        on_disk(move || replace_in_private_directory(&path, &serde_json::to_vec(&credentials)?)).await
    }

    async fn clear(&self) -> Result<(), AuthError> {
        let path = self.0.clone();
        on_disk(move || removed(&path).map(drop)).await
    }
}

async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, AuthError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(io::Error::other("the work panicked")))
        .map_err(|error| AuthError::CredentialStoreError(format!("its token file cannot be used: {error}")))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use epitome_tools::question::{QuestionMessage, QuestionSupport};
    use serde_json::Map;

    use super::*;

    /// Addresses were compared by their beginnings.
    #[test]
    fn a_login_is_encrypted_or_on_this_machine() {
        for (link, expected) in [
            ("https://login.example/authorize?x=1", true),
            ("http://127.0.0.1:8080/authorize", true),
            ("http://localhost/authorize", true),
            ("http://[::1]:9/authorize", true),
            ("http://login.example/authorize", false),
            ("http://127.0.0.1.evil.example/authorize", false),
            ("http://localhost@evil.example/authorize", false),
            ("https://login.example@evil.example/authorize", false),
            ("javascript:alert(1)", false),
            ("/authorize", false),
        ] {
            assert_eq!(is_private(link), expected, "{link}");
        }
    }

    /// The host that a browser contacts: up to a slash, a backslash, `?` or `#`, behind the last `@`, without its port.
    fn contacted(rest: &str) -> (&str, bool) {
        let authority = rest.split(['/', '\\', '?', '#']).next().unwrap_or_default();
        let (user, host) =
            authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
        let host =
            if host.starts_with('[') { host.split_inclusive(']').next() } else { host.split(':').next() };
        (host.unwrap_or_default(), user.is_some())
    }

    proptest::proptest! {
        /// The same for addresses that are put together: what is accepted leads a browser to no other place.
        #[test]
        fn no_spelling_of_an_address_leads_elsewhere(
            scheme in "http|https|HTTP|ftp|javascript|file", middle in "://|:/|:|:///|://\\\\",
            parts in proptest::collection::vec(
                "127\\.0\\.0\\.1|localhost|LOCALHOST|\\[::1\\]|\\[::1|evil\\.example|[@:/?#.%&]|\\\\|80|%2f|%40|\t", 1..7
            ),
        ) {
            let rest = parts.concat();
            let link = format!("{scheme}{middle}{rest}");
            if is_private(&link) {
                let (host, has_user) = contacted(&rest);
                let is_local = ["127.0.0.1", "localhost", "[::1]"].contains(&host);
                proptest::prop_assert!(!has_user && (is_local || scheme.eq_ignore_ascii_case("https")), "{}", link);
                proptest::prop_assert!(!link.contains(char::is_control) && scheme.to_ascii_lowercase().starts_with("http"));
                proptest::prop_assert_eq!(middle.as_str(), "://");
            }
        }
    }

    /// A server chose where Epitome registered and sent the code of a login, such as a service of the internal network.
    #[tokio::test]
    async fn another_origin_than_the_servers_needs_a_question() {
        let (questions, mut asked) = QuestionSender::new();
        let origins = |questions| LoginOrigins::new("tracker", "https://mcp.example/mcp", questions);
        let unseen = origins(&questions);
        assert!(unseen.check("https://mcp.example:443/register").await.is_err(), "nobody can be asked");
        assert!(unseen.check("https://mcp.example/register").await.is_ok());
        questions.set_shows(QuestionSupport { forms: true, urls: false });
        let seen = origins(&questions);
        seen.agree("https://login.example/authorize?x=1");
        assert!(seen.check("https://login.example/token").await.is_ok());
        for (reply, is_allowed) in
            [(QuestionReply::Declined, false), (QuestionReply::Accepted(Map::new()), true)]
        {
            let answer = async {
                let Some(QuestionMessage::Question { question, reply: to }) = asked.recv().await else {
                    panic!("no question")
                };
                assert!(question.message.contains("http://10.0.0.1:8080"), "{}", question.message);
                to.send(reply).expect("it waits");
            };
            let (checked, ()) = tokio::join!(seen.check("http://10.0.0.1:8080/register"), answer);
            assert_eq!(checked.is_ok(), is_allowed);
        }
        assert!(seen.check("http://10.0.0.1:8080/token").await.is_ok(), "the user has agreed");
    }

    #[tokio::test]
    async fn tokens_are_in_a_private_file_with_an_opaque_name() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = TokenFile(file_of(&folder.path().join("logins"), "https://mcp.example/sk-path"));
        assert!(file.load().await.expect("it can be looked for").is_none());
        file.save(StoredCredentials::new("me".to_owned(), None, Vec::new(), None))
            .await
            .expect("it is written");
        let mode = fs::metadata(&file.0).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(!file.0.display().to_string().contains("sk-path"));
        assert_eq!(file.load().await.expect("it is read").expect("it is there").client_id, "me");
        fs::write(&file.0, "damaged").expect("it can be damaged");
        assert!(file.load().await.expect("it can be looked at").is_none());
        file.clear().await.expect("it goes");
        assert!(file.load().await.expect("it can be looked for").is_none());
    }
}
