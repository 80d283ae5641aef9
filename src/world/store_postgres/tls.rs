//! TLS to the server: `sslmode` and `sslrootcert` mean what PostgreSQL documents for its own clients.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use percent_encoding::percent_decode_str;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{self, WebPkiSupportedAlgorithms};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres::config::SslMode;
use tokio_postgres_rustls::MakeRustlsConnect;

/// The value of `sslrootcert` for the public authorities.
const SYSTEM: &str = "system";

/// The settings of the address and the environment.
pub(crate) struct TlsChoice {
    mode: Option<String>,
    roots: Option<String>,
    /// The file of trusted certificates if nothing names one.
    default_roots: Option<String>,
}

/// An invalid `sslmode` or `sslrootcert`.
#[derive(Debug, thiserror::Error)]
pub enum TlsChoiceError {
    #[error("sslmode {0:?} is not supported; it can be disable, prefer, require, verify-ca or verify-full")]
    Mode(String),
    #[error("sslrootcert=system needs sslmode=verify-full, not {0}")]
    System(String),
    #[error(
        "sslmode={0} needs the certificate of the server's authority: name its file with sslrootcert, or put it into \
         ~/.postgresql/root.crt; sslrootcert=system trusts the public authorities"
    )]
    NoAuthority(String),
    #[error("sslrootcert names {0}, which has no certificate in PEM form")]
    NoCertificate(String),
    #[error("sslrootcert names {file}, which can't be read: {source}")]
    Certificates { file: String, source: pem::Error },
    #[error("no version of TLS can be used: {0}")]
    Versions(#[source] rustls::Error),
}

impl TlsChoice {
    /// Takes `sslmode` and `sslrootcert` out of an address, because the library does not know all of their values.
    pub fn taken_from(url: &str, variable: impl Fn(&str) -> Option<String>) -> (String, TlsChoice) {
        let mut choice = TlsChoice {
            mode: variable("PGSSLMODE"),
            roots: variable("PGSSLROOTCERT"),
            default_roots: variable("HOME").map(|home| format!("{home}/.postgresql/root.crt")),
        };
        let (base, options) = url.split_once('?').unwrap_or((url, ""));
        let mut others = Vec::new();
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let decoded = |value: &str| Some(percent_decode_str(value).decode_utf8_lossy().into_owned());
            match option.split_once('=') {
                Some(("sslmode", value)) => choice.mode = decoded(value),
                Some(("sslrootcert", value)) => choice.roots = decoded(value),
                _ => others.push(option),
            }
        }
        let url = if others.is_empty() { base.to_owned() } else { format!("{base}?{}", others.join("&")) };
        (url, choice)
    }

    pub fn connector(self) -> Result<(SslMode, MakeRustlsConnect), TlsChoiceError> {
        let is_system = self.roots.as_deref() == Some(SYSTEM);
        let default_mode = if is_system { "verify-full" } else { "prefer" };
        let mode = self.mode.as_deref().unwrap_or(default_mode);
        let roots = self.roots.or(self.default_roots.filter(|file| Path::new(file).exists()));
        let (ssl_mode, verifies, checks_name) = match mode {
            "disable" => (SslMode::Disable, false, false),
            "prefer" => (SslMode::Prefer, false, false),
            // Like `verify-ca` if there are certificates to verify it with.
            "require" => (SslMode::Require, roots.is_some(), false),
            "verify-ca" => (SslMode::Require, true, false),
            "verify-full" => (SslMode::Require, true, true),
            other => return Err(TlsChoiceError::Mode(other.to_owned())),
        };
        if is_system && !checks_name {
            return Err(TlsChoiceError::System(mode.to_owned()));
        }
        let trusted = match roots {
            _ if !verifies => None,
            None => return Err(TlsChoiceError::NoAuthority(mode.to_owned())),
            Some(_) if is_system => Some(webpki_root_certs::TLS_SERVER_ROOT_CERTS.to_vec()),
            Some(file) => Some(certificates(&file)?),
        };
        let provider = Arc::new(crypto::ring::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(trusted.iter().flatten().cloned());
        let verifier = ServerCertificates { trusted, roots, checks_name, algorithms };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(TlsChoiceError::Versions)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok((ssl_mode, MakeRustlsConnect::new(config)))
    }
}

fn certificates(file: &str) -> Result<Vec<CertificateDer<'static>>, TlsChoiceError> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(TlsChoiceError::NoCertificate(file.to_owned())),
        Ok(found) => Ok(found),
        Err(source) => Err(TlsChoiceError::Certificates { file: file.to_owned(), source }),
    }
}

/// The reason of a failed connection, with what to do about it.
pub(crate) fn explain(error: &tokio_postgres::Error, cause: &(dyn Error + 'static)) -> String {
    let advice = match tls_error(cause) {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "; use a name of the certificate as the host, or sslmode=verify-ca",
        Some(rustls::Error::InvalidCertificate(_)) => "; sslrootcert names the certificates that are trusted",
        _ if cause.to_string() == "server does not support TLS" => "; sslmode=disable does without",
        _ => "",
    };
    format!("{error}: {cause}{advice}")
}

/// Whether no other attempt will succeed: the certificate is wrong, the server has no TLS, a password is missing.
/// Faults of the network can pass.
pub(crate) fn is_permanent(cause: &(dyn Error + 'static)) -> bool {
    !cause.is::<io::Error>() || tls_error(cause).is_some()
}

/// The error of TLS that is the cause.
pub(crate) fn tls_error<'a>(cause: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    cause.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

/// Verifies as much as `sslmode` asks for.
#[derive(Debug)]
struct ServerCertificates {
    /// `None` if any certificate will do.
    trusted: Option<Vec<CertificateDer<'static>>>,
    roots: RootCertStore,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ServerCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(trusted) = &self.trusted else { return Ok(ServerCertVerified::assertion()) };
        let parsed = ParsedCertificate::try_from(certificate)?;
        // A self-signed certificate is often marked as an authority, which the general rules refuse for a server.
        if !trusted.contains(certificate) {
            rustls::client::verify_server_cert_signed_by_trust_anchor(
                &parsed,
                &self.roots,
                intermediates,
                now,
                self.algorithms.all,
            )?;
        }
        if self.checks_name {
            rustls::client::verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
