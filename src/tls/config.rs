//! From the parameters of a URI to rustls's configurations.
//!
//! Names and meaning are those of Tarantool Enterprise: without `ssl_ca_file` the peer is not verified; with it, its chain
//! is, though not its name. What is ours is `ssl_server_name`, which has the name verified, too.

use super::key;
use super::verify::{ClientVerifier, ServerVerifier, Trust};
use rustls::client::{ResolvesClientCert, Resumption};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::ServerName;
use rustls::server::NoServerSessionStorage;
use rustls::sign::SingleCertAndKey;
use rustls::{CipherSuite, ClientConfig, ServerConfig, SupportedCipherSuite, SupportedProtocolVersion, version};
use std::sync::Arc;

/// The `ssl_*` parameters; files are read when a configuration is made of them.
#[derive(Debug, Default, Clone)]
pub struct Parameters {
    /// `ssl_ca_file`: PEM certificates of those whose signatures are trusted.
    pub ca_file: Option<String>,
    /// `ssl_cert_file`: our certificate, then those between it and the CA, PEM.
    pub cert_file: Option<String>,
    /// `ssl_key_file`: the certificate's key, PEM.
    pub key_file: Option<String>,
    /// `ssl_password`: of an encrypted key.
    pub password: Option<Vec<u8>>,
    /// `ssl_password_file`: more of them, one a line.
    pub password_file: Option<String>,
    /// `ssl_ciphers`: OpenSSL's names, with colons between; nothing: all there are.
    pub ciphers: Option<String>,
    /// `ssl_server_name`: the name the server's certificate must be for.
    pub server_name: Option<String>,
}

/// What a client's connections are made of.
#[derive(Debug, Clone)]
pub struct ClientSetup {
    pub(super) config: Arc<ClientConfig>,
    pub(super) name: ServerName<'static>,
}

/// OpenSSL's names of the cipher suites there are, in the order they are preferred in.
const SUITES: [(&str, CipherSuite); 9] = [
    ("TLS_AES_256_GCM_SHA384", CipherSuite::TLS13_AES_256_GCM_SHA384),
    ("TLS_AES_128_GCM_SHA256", CipherSuite::TLS13_AES_128_GCM_SHA256),
    ("TLS_CHACHA20_POLY1305_SHA256", CipherSuite::TLS13_CHACHA20_POLY1305_SHA256),
    ("ECDHE-ECDSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-RSA-AES256-GCM-SHA384", CipherSuite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
    ("ECDHE-ECDSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-RSA-AES128-GCM-SHA256", CipherSuite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
    ("ECDHE-ECDSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    ("ECDHE-RSA-CHACHA20-POLY1305", CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
];

/// A client's configuration.
///
/// # Errors
/// What is wrong, with the parameter's name and the file's.
pub fn client(parameters: &Parameters) -> Result<ClientSetup, String> {
    let (provider, versions) = provider(parameters)?;
    let name = server_name(parameters)?;
    let trust = trust(parameters, &provider)?;
    let verifier = ServerVerifier { trust, name: parameters.server_name.as_ref().map(|_| name.clone()) };
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match identity(parameters, &provider)? {
        Some(identity) => builder.with_client_cert_resolver(Arc::new(identity) as Arc<dyn ResolvesClientCert>),
        None => builder.with_no_client_auth(),
    };
    // Each connection verifies its peer anew.
    config.resumption = Resumption::disabled();
    config.enable_sni = parameters.server_name.is_some();
    Ok(ClientSetup { config: Arc::new(config), name })
}

/// A server's configuration.
///
/// # Errors
/// What is wrong, with the parameter's name and the file's.
pub fn server(parameters: &Parameters) -> Result<Arc<ServerConfig>, String> {
    if parameters.server_name.is_some() {
        return Err("ssl_server_name is a client's parameter".to_string());
    }
    let (provider, versions) = provider(parameters)?;
    let Some(identity) = identity(parameters, &provider)? else {
        return Err("ssl_cert_file and ssl_key_file are mandatory for a server".to_string());
    };
    let builder = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?;
    let trust = trust(parameters, &provider)?;
    let builder = if parameters.ca_file.is_some() {
        builder.with_client_cert_verifier(Arc::new(ClientVerifier::new(trust)?))
    } else {
        builder.with_no_client_auth()
    };
    let mut config = builder.with_cert_resolver(Arc::new(identity));
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Our certificate and key, if there are.
fn identity(parameters: &Parameters, provider: &CryptoProvider) -> Result<Option<SingleCertAndKey>, String> {
    match (&parameters.cert_file, &parameters.key_file) {
        (None, None) => Ok(None),
        (Some(cert), Some(key)) => {
            let passwords = passwords(parameters)?;
            key::identity(cert, key, &passwords, provider).map(|identity| Some(identity.into()))
        }
        (Some(_), None) => Err("ssl_cert_file needs ssl_key_file".to_string()),
        (None, Some(_)) => Err("ssl_key_file needs ssl_cert_file".to_string()),
    }
}

/// The passwords to try, in Tarantool's order.
fn passwords(parameters: &Parameters) -> Result<Vec<Vec<u8>>, String> {
    let mut list: Vec<Vec<u8>> = parameters.password.iter().cloned().collect();
    if let Some(path) = &parameters.password_file {
        let text = key::read_file("ssl_password_file", path)?;
        list.extend(text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec()));
    }
    Ok(list)
}

fn trust(parameters: &Parameters, provider: &CryptoProvider) -> Result<Trust, String> {
    let certificates = match &parameters.ca_file {
        Some(path) => Some(key::certificates("ssl_ca_file", path)?),
        None => None,
    };
    Trust::new(certificates, provider.signature_verification_algorithms)
        .map_err(|problem| format!("ssl_ca_file '{}': {problem}", parameters.ca_file.as_deref().unwrap_or_default()))
}

/// The name that is verified. A connection needs one in any case; it is neither sent nor verified if nobody gave it.
fn server_name(parameters: &Parameters) -> Result<ServerName<'static>, String> {
    let Some(name) = &parameters.server_name else {
        return ServerName::try_from("tarantool").map_err(|error| error.to_string());
    };
    if parameters.ca_file.is_none() {
        return Err("ssl_server_name needs ssl_ca_file: without it no certificate is verified".to_string());
    }
    ServerName::try_from(name.clone()).map_err(|_| format!("ssl_server_name: '{name}' is no host name"))
}

type Offer = (Arc<CryptoProvider>, Vec<&'static SupportedProtocolVersion>);

/// The cipher suites asked for, and the versions of the protocol they belong to.
fn provider(parameters: &Parameters) -> Result<Offer, String> {
    let mut provider = ring::default_provider();
    if let Some(list) = &parameters.ciphers {
        provider.cipher_suites = suites(list, &provider.cipher_suites)?;
    }
    let has = |wanted: &SupportedProtocolVersion| {
        provider.cipher_suites.iter().any(|suite| suite.version().version == wanted.version)
    };
    let versions = [&version::TLS13, &version::TLS12].into_iter().filter(|version| has(version)).collect();
    Ok((Arc::new(provider), versions))
}

fn suites(list: &str, all: &[SupportedCipherSuite]) -> Result<Vec<SupportedCipherSuite>, String> {
    let mut wanted = Vec::new();
    let mut unknown = Vec::new();
    for name in list.split(':').map(str::trim).filter(|name| !name.is_empty()) {
        let suite = SUITES.iter().find(|(known, _)| *known == name);
        match suite.and_then(|(_, id)| all.iter().find(|suite| suite.suite() == *id)) {
            Some(suite) => wanted.push(*suite),
            None => unknown.push(name),
        }
    }
    let known = || SUITES.map(|(name, _)| name).join(":");
    if !unknown.is_empty() {
        return Err(format!("ssl_ciphers: unknown or unsupported {}; supported are {}", unknown.join(":"), known()));
    }
    if wanted.is_empty() {
        return Err(format!("ssl_ciphers: no cipher suite is named; supported are {}", known()));
    }
    Ok(wanted)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_suite_of_the_provider_has_a_name() {
        let all = ring::default_provider().cipher_suites;
        assert_eq!(all.len(), SUITES.len());
        for suite in all {
            assert!(SUITES.iter().any(|(_, id)| *id == suite.suite()), "{suite:?}");
        }
    }

    #[test]
    fn suites_decide_the_version() {
        let of = |list: &str| {
            let parameters = Parameters { ciphers: Some(list.to_string()), ..Parameters::default() };
            provider(&parameters)
                .map(|(_, versions)| versions.iter().map(|version| version.version).collect::<Vec<_>>())
        };
        assert_eq!(of("ECDHE-RSA-AES256-GCM-SHA384").unwrap(), [rustls::ProtocolVersion::TLSv1_2]);
        assert_eq!(of("TLS_AES_128_GCM_SHA256").unwrap(), [rustls::ProtocolVersion::TLSv1_3]);
        assert_eq!(of("TLS_AES_128_GCM_SHA256:ECDHE-RSA-AES128-GCM-SHA256").unwrap().len(), 2);
        let error = of("ECDHE-RSA-AES256-GCM-SHA384:DHE-RSA-AES256-GCM-SHA384:GOST2012").unwrap_err();
        assert!(
            error.starts_with("ssl_ciphers: unknown or unsupported DHE-RSA-AES256-GCM-SHA384:GOST2012;"),
            "{error}"
        );
        assert!(of(" : ").unwrap_err().starts_with("ssl_ciphers: no cipher suite is named;"));
    }

    #[test]
    fn parameters_that_make_no_sense_are_refused() {
        let error = |parameters: Parameters| client(&parameters).unwrap_err();
        let some = |text: &str| Some(text.to_string());
        assert_eq!(
            error(Parameters { cert_file: some("a"), ..Parameters::default() }),
            "ssl_cert_file needs ssl_key_file"
        );
        assert_eq!(
            error(Parameters { key_file: some("a"), ..Parameters::default() }),
            "ssl_key_file needs ssl_cert_file"
        );
        assert_eq!(
            error(Parameters { ca_file: some("/nonexistent/ca.crt"), ..Parameters::default() }),
            "ssl_ca_file '/nonexistent/ca.crt': No such file or directory"
        );
        assert_eq!(
            error(Parameters { server_name: some("a"), ..Parameters::default() }),
            "ssl_server_name needs ssl_ca_file: without it no certificate is verified"
        );
        assert_eq!(
            server(&Parameters::default()).unwrap_err(),
            "ssl_cert_file and ssl_key_file are mandatory for a server"
        );
        assert!(client(&Parameters::default()).is_ok());
    }
}
