//! Who is trusted: the chain of a peer's certificate, as OpenSSL checks it by default.
//!
//! webpki does the work. Two things it refuses and Tarantool's users have are done here: a peer whose self-signed
//! certificate is itself in `ssl_ca_file`, and peers that are not verified at all, whose certificates may be of X.509
//! version 1 (what `openssl x509 -req` made for years).

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, PeerMisbehaved, RootCertStore, SignatureScheme,
};
use std::sync::Arc;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

/// Whose signatures count.
#[derive(Debug)]
pub(super) struct Trust {
    /// The certificates of `ssl_ca_file`; none: everybody is trusted.
    anchors: Option<Arc<RootCertStore>>,
    /// Those of them that are signed with their own key.
    selves: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Trust {
    /// Trust in some certificates, or in everybody.
    ///
    /// # Errors
    /// A certificate that cannot be a trust anchor.
    pub(super) fn new(
        certificates: Option<Vec<CertificateDer<'static>>>,
        algorithms: WebPkiSupportedAlgorithms,
    ) -> Result<Self, String> {
        let Some(certificates) = certificates else {
            return Ok(Trust { anchors: None, selves: Vec::new(), algorithms });
        };
        let mut anchors = RootCertStore::empty();
        for certificate in &certificates {
            anchors.add(certificate.clone()).map_err(|error| format!("a certificate cannot be used: {error}"))?;
        }
        let selves = certificates.into_iter().filter(|der| is_self_issued(der)).collect();
        Ok(Trust { anchors: Some(Arc::new(anchors)), selves, algorithms })
    }

    /// Whether the certificate is itself among those trusted; an error if it is, but not at this time.
    fn knows(&self, certificate: &CertificateDer<'_>, now: UnixTime) -> Result<bool, Error> {
        if !self.selves.iter().any(|der| der == certificate) {
            return Ok(false);
        }
        let parsed = parse(certificate)?;
        let validity = parsed.tbs_certificate().validity();
        let now = now.as_secs();
        if now < validity.not_before.to_unix_duration().as_secs() {
            return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
        }
        if now > validity.not_after.to_unix_duration().as_secs() {
            return Err(Error::InvalidCertificate(CertificateError::Expired));
        }
        Ok(true)
    }

    /// Whether the peer has the key of its certificate. In TLS 1.3 (`modern`) a scheme names one algorithm.
    fn proves(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
        modern: bool,
    ) -> Result<HandshakeSignatureValid, Error> {
        if modern && is_old(signed.scheme) {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        }
        let parsed = parse(certificate)?;
        let key = parsed.tbs_certificate().subject_public_key_info();
        let kind = key.algorithm.to_der().map_err(|_| bad_encoding())?;
        // An AlgorithmIdentifier's bytes without the outer SEQUENCE, which is shorter than 128 bytes.
        let kind = kind.get(2..).unwrap_or_default();
        let possible = self.algorithms.mapping.iter().find(|(scheme, _)| *scheme == signed.scheme);
        let Some((_, possible)) = possible else {
            return Err(PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
        };
        let possible = if modern { possible.get(..1).unwrap_or_default() } else { possible };
        let fits = possible.iter().filter(|algorithm| algorithm.public_key_alg_id().as_ref() == kind);
        let public_key = key.subject_public_key.raw_bytes();
        for algorithm in fits {
            if algorithm.verify_signature(public_key, message, signed.signature()).is_ok() {
                return Ok(HandshakeSignatureValid::assertion());
            }
        }
        Err(Error::InvalidCertificate(CertificateError::BadSignature))
    }
}

/// Whether TLS 1.3 has done away with a scheme.
fn is_old(scheme: SignatureScheme) -> bool {
    use SignatureScheme as Scheme;
    let pkcs1 = [Scheme::RSA_PKCS1_SHA256, Scheme::RSA_PKCS1_SHA384, Scheme::RSA_PKCS1_SHA512];
    let sha1 = [Scheme::RSA_PKCS1_SHA1, Scheme::ECDSA_SHA1_Legacy];
    pkcs1.contains(&scheme) || sha1.contains(&scheme)
}

fn bad_encoding() -> Error {
    Error::InvalidCertificate(CertificateError::BadEncoding)
}

fn parse(certificate: &CertificateDer<'_>) -> Result<Certificate, Error> {
    Certificate::from_der(certificate).map_err(|_| bad_encoding())
}

fn is_self_issued(certificate: &CertificateDer<'_>) -> bool {
    parse(certificate).is_ok_and(|cert| cert.tbs_certificate().issuer() == cert.tbs_certificate().subject())
}

/// What a client demands of a server.
#[derive(Debug)]
pub(super) struct ServerVerifier {
    /// Whom it trusts.
    pub(super) trust: Trust,
    /// The name the certificate must be for.
    pub(super) name: Option<ServerName<'static>>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(anchors) = &self.trust.anchors else {
            return Ok(ServerCertVerified::assertion());
        };
        if !self.trust.knows(end_entity, now)? {
            let parsed = ParsedCertificate::try_from(end_entity)?;
            verify_server_cert_signed_by_trust_anchor(&parsed, anchors, intermediates, now, self.trust.algorithms.all)?;
        }
        if let Some(name) = &self.name {
            verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.proves(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.proves(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}

/// What a server with `ssl_ca_file` demands of its clients.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    trust: Trust,
    chain: Arc<dyn ClientCertVerifier>,
}

impl ClientVerifier {
    /// Demands of clients a certificate that is trusted.
    ///
    /// # Errors
    /// Nobody is trusted.
    pub(super) fn new(trust: Trust) -> Result<Self, String> {
        let anchors = trust.anchors.clone().unwrap_or_else(|| Arc::new(RootCertStore::empty()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let chain = WebPkiClientVerifier::builder_with_provider(anchors, provider).build();
        Ok(ClientVerifier { trust, chain: chain.map_err(|error| error.to_string())? })
    }
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if self.trust.knows(end_entity, now)? {
            return Ok(ClientCertVerified::assertion());
        }
        self.chain.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.proves(message, cert, dss, false)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.trust.proves(message, cert, dss, true)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.trust.algorithms.supported_schemes()
    }
}
