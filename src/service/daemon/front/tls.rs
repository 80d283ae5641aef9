//! Encryption of connections to and from other machines, with the cryptography that requests to providers use.

use std::sync::Arc;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// Why certificates or a key can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the key can't be read: {0}")]
    Key(#[source] pem::Error),
    #[error("the certificates can't be read: {0}")]
    Certificates(#[source] pem::Error),
    #[error("the file has no certificate")]
    NoCertificate,
    #[error("a certificate can't be trusted: {0}")]
    Untrusted(#[source] rustls::Error),
    #[error("the certificate and the key can't be used: {0}")]
    Pair(#[source] rustls::Error),
    #[error("no version of TLS can be used: {0}")]
    Versions(#[source] rustls::Error),
}

/// The configuration of a server. `chain`: its certificate in PEM, followed by those that lead to a known one.
pub fn server(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = certificates(chain)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Key)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The configuration of a client that trusts these certificates in PEM, or else the public authorities.
pub fn client(authorities: Option<&[u8]>) -> Result<Arc<ClientConfig>, TlsError> {
    let mut roots = RootCertStore::empty();
    match authorities {
        None => {
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
        Some(pem) => certificates(pem)?
            .into_iter()
            .try_for_each(|certificate| roots.add(certificate))
            .map_err(TlsError::Untrusted)?,
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Versions)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err(TlsError::NoCertificate),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(TlsError::Certificates(error)),
    }
}
