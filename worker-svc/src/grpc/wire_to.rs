//! Hand-off messages to transfer types and back.

use std::ops::Range;

use armature_contracts::worker::v1 as wire;

use super::convert;
use crate::domain::sampled::Sampled;
use crate::transfer::{
    Acceptance, BootId, Grant, Incarnation, LayerRange, Offer, PeerBlock, PieceReady, TokenRange, TransferId,
    TransferSecret, TransportKind, WindowIndex,
};

const TCP: &str = "tcp";
const SHM: &str = "shm";

/// A message that does not say what it must.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed {0}")]
pub(crate) struct Malformed(&'static str);

/// A range of tokens. Contexts are far below 2^32 tokens.
pub(crate) fn token_range(tokens: &Range<usize>) -> TokenRange {
    TokenRange::new(tokens.start as u32, tokens.end as u32)
}

/// The first message of a transfer.
pub(crate) fn prefill_start(start: wire::PrefillStart) -> wire::PrefillRequest {
    wire::PrefillRequest { message: Some(wire::prefill_request::Message::Start(start)) }
}

/// An offer, as D sends it.
pub(crate) fn landing(offer: &Offer) -> wire::Landing {
    let tcp = offer.tcp.as_ref().map(|address| wire::LandingTransport {
        kind: TCP.into(),
        address: address.clone(),
        boot_id: String::new(),
    });
    let shm = offer.shm.as_ref().map(|boot| wire::LandingTransport {
        kind: SHM.into(),
        address: String::new(),
        boot_id: boot.0.clone(),
    });
    wire::Landing {
        transfer_id: offer.transfer.0.to_be_bytes().to_vec().into(),
        transfer_secret: offer.secret.expose().to_vec().into(),
        transports: shm.into_iter().chain(tcp).collect(),
    }
}

/// An offer, as P reads it.
pub(crate) fn offer(landing: &wire::Landing, tokens: TokenRange) -> Result<Offer, Malformed> {
    let transfer: [u8; 16] = landing.transfer_id.as_ref().try_into().map_err(|_| Malformed("transfer_id"))?;
    let secret: [u8; 16] =
        landing.transfer_secret.as_ref().try_into().map_err(|_| Malformed("transfer_secret"))?;
    let of = |kind: &str| landing.transports.iter().find(|transport| transport.kind == kind);
    let (tcp, shm) = (of(TCP).map(|t| t.address.clone()), of(SHM).map(|t| BootId(t.boot_id.clone())));
    if tcp.is_none() && shm.is_none() {
        return Err(Malformed("transports: neither tcp nor shm is offered"));
    }
    Ok(Offer {
        transfer: TransferId(u128::from_be_bytes(transfer)),
        secret: TransferSecret::new(secret),
        tokens,
        tcp,
        shm,
    })
}

/// An acceptance, as P sends it.
pub(crate) fn accepted(acceptance: &Acceptance) -> wire::PrefillAccepted {
    let (transport, detail) = match acceptance {
        Acceptance::Tcp { shm_refused } => (TCP, shm_refused.map(|why| why.to_string()).unwrap_or_default()),
        Acceptance::Shm { incarnation } => (SHM, incarnation.to_string()),
    };
    wire::PrefillAccepted { transport: transport.into(), detail }
}

/// An acceptance, as D reads it.
pub(crate) fn acceptance(accepted: &wire::PrefillAccepted) -> Result<Acceptance, Malformed> {
    match accepted.transport.as_str() {
        TCP => Ok(Acceptance::Tcp { shm_refused: None }),
        SHM => u64::from_str_radix(&accepted.detail, 16)
            .map(|incarnation| Acceptance::Shm { incarnation: Incarnation(incarnation) })
            .map_err(|_| Malformed("incarnation")),
        _ => Err(Malformed("transport")),
    }
}

/// A grant, as D sends it.
pub(crate) fn grant(grant: &Grant) -> wire::Grant {
    wire::Grant {
        window: grant.window.0,
        token_start: grant.tokens.start,
        token_count: grant.tokens.len(),
        transport: match grant.transport {
            TransportKind::Tcp => TCP.into(),
            TransportKind::Shm => SHM.into(),
        },
    }
}

/// A grant, as P reads it.
pub(crate) fn granted(transfer: TransferId, grant: &wire::Grant) -> Result<Grant, Malformed> {
    Ok(Grant {
        transfer,
        window: WindowIndex(grant.window),
        tokens: TokenRange::counted(grant.token_start, grant.token_count).ok_or(Malformed("token range"))?,
        transport: match grant.transport.as_str() {
            TCP => TransportKind::Tcp,
            SHM => TransportKind::Shm,
            _ => return Err(Malformed("transport")),
        },
    })
}

/// A piece, as P sends it.
pub(crate) fn piece(piece: PieceReady) -> wire::PieceReady {
    wire::PieceReady {
        window: piece.window.0,
        layer_start: piece.layers.start,
        layer_count: piece.layers.len(),
        token_start: piece.tokens.start,
        token_count: piece.tokens.len(),
        source_blocks: piece.blocks.iter().map(|block| block.0).collect(),
    }
}

/// A piece, as D reads it.
pub(crate) fn piece_ready(transfer: TransferId, piece: wire::PieceReady) -> PieceReady {
    // An overflowing range is empty, which the session refuses.
    PieceReady {
        transfer,
        window: WindowIndex(piece.window),
        layers: LayerRange::counted(piece.layer_start, piece.layer_count).unwrap_or(LayerRange::new(0, 0)),
        tokens: TokenRange::counted(piece.token_start, piece.token_count).unwrap_or(TokenRange::new(0, 0)),
        blocks: piece.source_blocks.into_iter().map(PeerBlock).collect(),
    }
}

/// First tokens of each choice, as D reads them.
pub(crate) fn first_tokens(done: &wire::PrefillDone) -> Vec<(u32, Sampled)> {
    let sampled =
        |first: &wire::FirstToken| first.token.as_ref().map(|t| (first.choice, convert::sampled(t)));
    done.first_tokens.iter().filter_map(sampled).collect()
}
