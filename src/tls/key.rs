//! Certificates and private keys out of PEM files.

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use x509_cert::Certificate;
use x509_cert::der::{Decode, Encode};

/// More than any file of certificates or keys has.
const FILE_MAX: u64 = 16 << 20;

/// A file's bytes. What is not on a disk is refused: reading a pipe or a device might never end, and all fibers wait.
///
/// # Errors
/// The system's, with the parameter's name and the file's.
pub(super) fn read_file(parameter: &str, path: &str) -> Result<Vec<u8>, String> {
    read_regular(path).map_err(|error| {
        let text = error.to_string();
        format!("{parameter} '{path}': {}", text.split(" (os error").next().unwrap_or_default())
    })
}

fn read_regular(path: &str) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for its writer.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other("longer than 16 MB"));
    }
    Ok(bytes)
}

/// All certificates of a PEM file, at least one.
///
/// # Errors
/// What is wrong, with the parameter's name and the file's.
pub(super) fn certificates(parameter: &str, path: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let bytes = read_file(parameter, path)?;
    let read: Result<Vec<CertificateDer<'static>>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
    let list = read.map_err(|error| format!("{parameter} '{path}': broken PEM: {error}"))?;
    if list.is_empty() {
        return Err(format!("{parameter} '{path}': no PEM certificate in it"));
    }
    if list.iter().any(|der| Certificate::from_der(der).is_err()) {
        return Err(format!("{parameter} '{path}': not an X.509 certificate"));
    }
    Ok(list)
}

/// A certificate with its chain, and its key.
///
/// # Errors
/// What is wrong, with the parameter's name and the file's.
pub(super) fn identity(
    cert_file: &str,
    key_file: &str,
    passwords: &[Vec<u8>],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let chain = certificates("ssl_cert_file", cert_file)?;
    let pem = read_file("ssl_key_file", key_file)?;
    let der = private_key(&pem, passwords).map_err(|problem| format!("ssl_key_file '{key_file}': {problem}"))?;
    let key = provider.key_provider.load_private_key(der).map_err(|_| {
        format!(
            "ssl_key_file '{key_file}': not a key of a supported kind (RSA from 2048 bits, ECDSA P-256, P-384, Ed25519)"
        )
    })?;
    let theirs = chain.first().and_then(|der| Certificate::from_der(der).ok());
    let theirs = theirs.and_then(|cert| cert.tbs_certificate().subject_public_key_info().to_der().ok());
    if let Some(ours) = key.public_key()
        && theirs.is_some_and(|theirs| theirs != ours.as_ref())
    {
        return Err(format!(
            "ssl_key_file '{key_file}': does not match the certificate of ssl_cert_file '{cert_file}'"
        ));
    }
    Ok(CertifiedKey::new(chain, key))
}

/// The first block of a PEM text whose label ends in `PRIVATE KEY`, and its label.
fn key_block(pem: &str) -> Option<(&str, &str)> {
    let mut rest = pem;
    loop {
        let at = rest.find("-----BEGIN ")?;
        rest = rest.get(at..)?;
        let label = rest.get(11..)?.split_once("-----")?.0;
        let end = format!("-----END {label}-----");
        let len = rest.find(&end)? + end.len();
        let block = rest.get(..len)?;
        if label.ends_with("PRIVATE KEY") {
            return Some((label, block));
        }
        rest = rest.get(len..)?;
    }
}

fn private_key(pem: &[u8], passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
    let text = String::from_utf8_lossy(pem);
    let Some((label, block)) = key_block(&text) else {
        return Err("no PEM private key in it".to_string());
    };
    if block.contains("Proc-Type:") {
        return Err("the key is encrypted in OpenSSL's old format, which is not supported; \
                    'openssl pkcs8 -topk8 -in KEY -out NEW' makes one that is"
            .to_string());
    }
    if label == "ENCRYPTED PRIVATE KEY" {
        return decrypt(block, passwords);
    }
    PrivateKeyDer::from_pem_slice(block.as_bytes()).map_err(|_| format!("broken PEM of a {label}"))
}

/// The key behind the first password that fits.
fn decrypt(block: &str, passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, String> {
    use pkcs8::pkcs5;
    let broken = |_| "broken PEM of an ENCRYPTED PRIVATE KEY".to_string();
    let (_, document) = pkcs8::SecretDocument::from_pem(block).map_err(broken)?;
    let info = pkcs8::EncryptedPrivateKeyInfoRef::try_from(document.as_bytes()).map_err(|_| {
        "the key is encrypted in a way that is not supported; \
         'openssl pkcs8 -topk8 -v2 aes-256-cbc -in KEY -out NEW' makes one that is"
            .to_string()
    })?;
    for password in passwords {
        match info.decrypt(password) {
            Ok(key) => return Ok(PrivatePkcs8KeyDer::from(key.as_bytes().to_vec()).into()),
            Err(pkcs8::Error::EncryptedPrivateKey(
                error @ (pkcs5::Error::NoPbes1CryptSupport
                | pkcs5::Error::UnsupportedAlgorithm { .. }
                | pkcs5::Error::AlgorithmParametersInvalid { .. }),
            )) => {
                return Err(format!(
                    "the key is encrypted in a way that is not supported ({error}); \
                     'openssl pkcs8 -topk8 -v2 aes-256-cbc -in KEY -out NEW' makes one that is"
                ));
            }
            Err(_) => {}
        }
    }
    let problem = if passwords.is_empty() {
        "the key is encrypted: ssl_password or ssl_password_file is needed"
    } else {
        "the key is encrypted, and no password of ssl_password and ssl_password_file fits"
    };
    Err(problem.to_string())
}
