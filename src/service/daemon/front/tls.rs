//! Encryption of connections to and from other machines, with the cryptography that requests to providers use.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// The configuration of a server. `chain`: its certificate in PEM, followed by those that lead to a known one. An error
/// is a sentence for the user.
pub fn server(chain: &[u8], key: &[u8]) -> Result<Arc<ServerConfig>, String> {
    let chain = certificates(chain)?;
    let key =
        PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key can't be read: {error}"))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| format!("the certificate and the key can't be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The configuration of a client that trusts these certificates in PEM, or else the public authorities.
pub fn client(authorities: Option<&[u8]>) -> Result<Arc<ClientConfig>, String> {
    let mut roots = RootCertStore::empty();
    match authorities {
        None => {
            roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
        }
        Some(pem) => certificates(pem)?
            .into_iter()
            .try_for_each(|certificate| roots.add(certificate))
            .map_err(|error| format!("a certificate can't be trusted: {error}"))?,
    }
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match certificates {
        Ok(certificates) if certificates.is_empty() => Err("the file has no certificate".to_owned()),
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(format!("the certificates can't be read: {error}")),
    }
}
