//! D's end: fetches peers' pools and keeps the mappings that were used last.
//!
//! Each transfer proves its secret and is given the descriptor anew; the cache only spares mapping the
//! same memory file again (and the page faults of a fresh mapping). It is keyed by the file itself,
//! so that no claimed id can lead to another's pool.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::pool;
use crate::ports::KvGeometry;
use crate::transfer::ids::{Incarnation, TransferId, TransferSecret};
use crate::transfer::mapping::{FileIdentity, Mapping};
use crate::transfer::proof::{self, Channel};
use crate::transfer::reason::ShmRefusal;

#[derive(Debug)]
struct Kept {
    file: FileIdentity,
    mapping: Arc<Mapping>,
    used: Instant,
}

#[derive(Debug)]
pub(crate) struct Importer {
    directory: PathBuf,
    geometry: KvGeometry,
    handshake_timeout: Duration,
    /// Mappings kept for the next transfer; those of open transfers live as long as these.
    max_kept: usize,
    /// The one used last at the end.
    kept: Mutex<Vec<Kept>>,
    /// Copies that occupy a thread at a time.
    pub(crate) copies: Arc<Semaphore>,
}

impl Importer {
    pub(crate) fn new(
        directory: PathBuf,
        geometry: KvGeometry,
        handshake_timeout: Duration,
        max_kept: usize,
        max_copies: usize,
    ) -> Self {
        let copies = Arc::new(Semaphore::new(max_copies));
        Self { directory, geometry, handshake_timeout, max_kept, kept: Mutex::default(), copies }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pool of `incarnation`, which must prove `secret`.
    pub(crate) async fn fetch(
        &self,
        incarnation: Incarnation,
        transfer: TransferId,
        secret: &TransferSecret,
    ) -> Result<Arc<Mapping>, ShmRefusal> {
        let fetching = async {
            let path = pool::socket_path(&self.directory, incarnation);
            let mut stream = UnixStream::connect(path).await.map_err(|_| ShmRefusal::Unreachable)?;
            proof::dial(&mut stream, Channel::Descriptor, transfer, secret, rand::random())
                .await
                .map_err(|_| ShmRefusal::Unproven)?;
            pool::receive(&mut stream, &self.geometry).await
        };
        let (shape, descriptor) =
            timeout(self.handshake_timeout, fetching).await.map_err(|_| ShmRefusal::TimedOut)??;
        let file = FileIdentity::of(&descriptor)?;
        let now = Instant::now();
        let mut kept = self.kept();
        if let Some(at) = kept.iter().position(|known| known.file == file) {
            let known = kept.remove(at);
            let mapping = Arc::clone(&known.mapping);
            kept.push(Kept { used: now, ..known });
            return if mapping.blocks() == shape.blocks { Ok(mapping) } else { Err(ShmRefusal::OtherShape) };
        }
        let mapping = Arc::new(Mapping::open(descriptor, &self.geometry, shape.blocks)?);
        while kept.len() >= self.max_kept.max(1) {
            kept.remove(0);
        }
        kept.push(Kept { file, mapping: Arc::clone(&mapping), used: now });
        Ok(mapping)
    }

    /// Gives up mappings not used since `since`: a dead peer's pool is not held for ever.
    pub(crate) fn forget_unused(&self, since: Instant) {
        self.kept().retain(|known| known.used >= since || Arc::strong_count(&known.mapping) > 1);
    }

    /// Mappings kept.
    pub(crate) fn kept_count(&self) -> usize {
        self.kept().len()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixListener;

    use super::*;
    use crate::kv_memory::KvMemory;

    const OURS: KvGeometry = KvGeometry { layers: 2, kv_heads: 1, head_dim: 2, block_size: 4 };
    const ID: TransferId = TransferId(5);
    const PEER: Incarnation = Incarnation(1);

    fn secret(byte: u8) -> TransferSecret {
        TransferSecret::new([byte; 16])
    }

    fn importer(directory: &Path) -> Importer {
        Importer::new(directory.to_owned(), OURS, Duration::from_secs(60), 2, 1)
    }

    /// What `fetch` says of a peer that proves `byte` and hands out `kv`, or 24 bytes without a descriptor.
    async fn fetch_from(importer: &Importer, byte: u8, kv: Option<&KvMemory>) -> Result<usize, ShmRefusal> {
        let path = pool::socket_path(&importer.directory, PEER);
        let listener = UnixListener::bind(&path).unwrap();
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let lookup = |_| Some((secret(byte), ()));
            if proof::answer(&mut stream, Channel::Descriptor, [0; 16], lookup).await.is_ok() {
                match kv {
                    Some(kv) => pool::send(&stream, kv).await.unwrap(),
                    None => stream.write_all(&[0; 24]).await.unwrap(),
                }
            }
        };
        let ours = secret(7);
        let (fetched, ()) = tokio::join!(importer.fetch(PEER, ID, &ours), serving);
        std::fs::remove_file(path).unwrap();
        fetched.map(|mapping| mapping.blocks())
    }

    #[tokio::test]
    async fn every_failed_exchange_has_its_reason() {
        let directory = tempfile::tempdir().unwrap();
        let importer = importer(directory.path());
        let lost = importer.fetch(PEER, ID, &secret(7)).await;
        assert_eq!(lost.unwrap_err(), ShmRefusal::Unreachable);
        let kv = KvMemory::new(OURS, 3).unwrap();
        assert_eq!(fetch_from(&importer, 8, Some(&kv)).await, Err(ShmRefusal::Unproven));
        assert_eq!(fetch_from(&importer, 7, None).await, Err(ShmRefusal::NoDescriptor));
        let other = KvMemory::new(KvGeometry { layers: 3, ..OURS }, 3).unwrap();
        assert_eq!(fetch_from(&importer, 7, Some(&other)).await, Err(ShmRefusal::OtherShape));
        assert_eq!(importer.kept_count(), 0);
        assert_eq!(fetch_from(&importer, 7, Some(&kv)).await, Ok(3));
    }

    #[tokio::test]
    async fn a_silent_peer_is_given_up() {
        let directory = tempfile::tempdir().unwrap();
        let importer = importer(directory.path());
        let _listener = UnixListener::bind(pool::socket_path(directory.path(), PEER)).unwrap();
        tokio::time::pause();
        assert_eq!(importer.fetch(PEER, ID, &secret(7)).await.unwrap_err(), ShmRefusal::TimedOut);
    }

    #[tokio::test]
    async fn mappings_are_kept_by_file_the_last_used_longest() {
        let directory = tempfile::tempdir().unwrap();
        let importer = importer(directory.path());
        let pools: Vec<_> = (1..=3).map(|blocks| KvMemory::new(OURS, blocks).unwrap()).collect();
        for nth in [0, 1, 0, 2] {
            assert_eq!(fetch_from(&importer, 7, Some(&pools[nth])).await, Ok(nth + 1));
        }
        let kept: Vec<_> = importer.kept().iter().map(|kept| kept.mapping.blocks()).collect();
        assert_eq!(kept, [1, 3], "the pool of two blocks was used least recently");
        importer.forget_unused(Instant::now() + Duration::from_secs(1));
        assert_eq!(importer.kept_count(), 0);
    }
}
