//! The proof of a transfer's secret, the same over tcp and over a Unix socket.
//!
//! ```text
//! dialer -> answerer   magic(8) transfer(16, LE) nonce_d(16)
//! answerer -> dialer   nonce_a(16) proof(answerer)(32)
//! dialer -> answerer   proof(dialer)(32)
//! proof(role) = HMAC-SHA256(secret, label ‖ role ‖ transfer ‖ nonce_d ‖ nonce_a)
//! ```
//! The label names the channel and the role byte differs, so that no proof can be used elsewhere or be
//! sent back. An unknown transfer is answered by closing.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::ids::{TransferId, TransferSecret};

const MAGIC: [u8; 8] = *b"armkv\0\0\x01";
const NONCE: usize = 16;
const PROOF: usize = 32;
const HELLO: usize = MAGIC.len() + 16 + NONCE;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Channel {
    /// KV frames from P to D.
    Frames,
    /// P's descriptor to D.
    Descriptor,
}

impl Channel {
    fn label(self) -> &'static [u8] {
        match self {
            Self::Frames => b"armature-kv-frames-v1",
            Self::Descriptor => b"armature-kv-descriptor-v1",
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Role {
    Dialer = 1,
    Answerer = 2,
}

/// Why a connection was not let in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProofError {
    #[error("not a hello")]
    Malformed,
    #[error("unknown transfer")]
    UnknownTransfer,
    #[error("wrong proof")]
    Wrong,
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

struct Transcript {
    channel: Channel,
    transfer: TransferId,
    dialer: [u8; NONCE],
    answerer: [u8; NONCE],
}

impl Transcript {
    fn mac(&self, secret: &TransferSecret, role: Role) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(secret.expose()).expect("HMAC takes keys of any length");
        mac.update(self.channel.label());
        mac.update(&[role as u8]);
        mac.update(&self.transfer.0.to_le_bytes());
        mac.update(&self.dialer);
        mac.update(&self.answerer);
        mac
    }

    fn prove(&self, secret: &TransferSecret, role: Role) -> [u8; PROOF] {
        self.mac(secret, role).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    fn verify(&self, secret: &TransferSecret, role: Role, proof: &[u8; PROOF]) -> Result<(), ProofError> {
        self.mac(secret, role).verify_slice(proof).map_err(|_| ProofError::Wrong)
    }
}

/// Proves the secret to the peer that was dialed and has it prove it, too. `nonce` must be fresh.
pub(crate) async fn dial<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    channel: Channel,
    transfer: TransferId,
    secret: &TransferSecret,
    nonce: [u8; NONCE],
) -> Result<(), ProofError> {
    let mut hello = [0; HELLO];
    hello[..8].copy_from_slice(&MAGIC);
    hello[8..24].copy_from_slice(&transfer.0.to_le_bytes());
    hello[24..].copy_from_slice(&nonce);
    stream.write_all(&hello).await?;
    let mut answerer = [0; NONCE];
    stream.read_exact(&mut answerer).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    let transcript = Transcript { channel, transfer, dialer: nonce, answerer };
    transcript.verify(secret, Role::Answerer, &proof)?;
    stream.write_all(&transcript.prove(secret, Role::Dialer)).await?;
    Ok(())
}

/// Lets in a dialer that proves the secret which `lookup` finds for its transfer. `nonce` must be fresh.
pub(crate) async fn answer<S: AsyncRead + AsyncWrite + Unpin, T>(
    stream: &mut S,
    channel: Channel,
    nonce: [u8; NONCE],
    lookup: impl FnOnce(TransferId) -> Option<(TransferSecret, T)>,
) -> Result<T, ProofError> {
    let mut hello = [0; HELLO];
    stream.read_exact(&mut hello).await?;
    let (magic, rest) = hello.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(ProofError::Malformed);
    }
    let (id, dialer) = rest.split_at(16);
    let transfer = TransferId(u128::from_le_bytes(id.try_into().map_err(|_| ProofError::Malformed)?));
    let dialer = dialer.try_into().map_err(|_| ProofError::Malformed)?;
    let (secret, found) = lookup(transfer).ok_or(ProofError::UnknownTransfer)?;
    let transcript = Transcript { channel, transfer, dialer, answerer: nonce };
    let mut reply = [0; NONCE + PROOF];
    reply[..NONCE].copy_from_slice(&nonce);
    reply[NONCE..].copy_from_slice(&transcript.prove(&secret, Role::Answerer));
    stream.write_all(&reply).await?;
    let mut proof = [0; PROOF];
    stream.read_exact(&mut proof).await?;
    transcript.verify(&secret, Role::Dialer, &proof)?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: TransferId = TransferId(7);

    async fn meet(dialer: Channel, dialers: [u8; 16], answerers: [u8; 16]) -> (bool, bool) {
        let (mut a, mut b) = tokio::io::duplex(256);
        let secret = TransferSecret::new(dialers);
        let dialing = async move { dial(&mut a, dialer, ID, &secret, [1; 16]).await.is_ok() };
        let answering = async move {
            let lookup = |id| (id == ID).then(|| (TransferSecret::new(answerers), ()));
            answer(&mut b, Channel::Frames, [2; 16], lookup).await.is_ok()
        };
        tokio::join!(dialing, answering)
    }

    #[tokio::test]
    async fn only_equal_secrets_on_one_channel_meet() {
        assert_eq!(meet(Channel::Frames, [9; 16], [9; 16]).await, (true, true));
        assert_eq!(meet(Channel::Frames, [9; 16], [8; 16]).await, (false, false));
        assert_eq!(meet(Channel::Descriptor, [9; 16], [9; 16]).await, (false, false));
    }

    #[tokio::test]
    async fn an_answer_sent_back_proves_nothing() {
        let (mut a, mut b) = tokio::io::duplex(256);
        let answering = tokio::spawn(async move {
            answer(&mut b, Channel::Frames, [2; 16], |_| Some((TransferSecret::new([9; 16]), ()))).await
        });
        let mut hello = MAGIC.to_vec();
        hello.extend(ID.0.to_le_bytes());
        hello.extend([1; 16]);
        a.write_all(&hello).await.unwrap();
        let mut reply = [0; 48];
        a.read_exact(&mut reply).await.unwrap();
        a.write_all(&reply[16..]).await.unwrap();
        assert!(matches!(answering.await.unwrap(), Err(ProofError::Wrong)));
    }
}
