//! Both kinds of address behave alike.

use std::io::ErrorKind;

use armature_svc_kit::address::Address;
use armature_svc_kit::network::{BindError, Network};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn addresses() -> [Address; 2] {
    [Address::mem("service"), Address::tcp("127.0.0.1", 0)]
}

#[tokio::test]
async fn bytes_pass_both_ways() {
    for address in addresses() {
        let network = Network::new();
        let mut listener = network.bind(&address).await.unwrap();
        let bound = listener.address().clone();
        assert_ne!(bound.port(), Some(0));
        let (mut near, mut far) =
            tokio::join!(async { network.connect(&bound).await.unwrap() }, listener.accept());
        near.write_all(b"ping").await.unwrap();
        let mut four = [0; 4];
        far.read_exact(&mut four).await.unwrap();
        assert_eq!(&four, b"ping");
        drop(far);
        assert_eq!(near.read(&mut four).await.unwrap(), 0);
    }
}

#[tokio::test]
async fn a_used_address_is_named_and_freed_on_drop() {
    for address in addresses() {
        let network = Network::new();
        let listener = network.bind(&address).await.unwrap();
        let bound = listener.address().clone();
        let error = network.bind(&bound).await.unwrap_err();
        assert!(matches!(&error, BindError::InUse { address } if *address == bound));
        let text = error.to_string();
        assert!(text.contains(&bound.to_string()) && text.contains("configure another port"), "{text}");
        drop(listener);
        network.bind(&bound).await.unwrap();
    }
}

#[tokio::test]
async fn nobody_listening_is_refused() {
    for address in addresses() {
        let network = Network::new();
        let bound = network.bind(&address).await.unwrap().address().clone();
        assert_eq!(network.connect(&bound).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_wait_for_one_to_end() {
    for address in addresses() {
        let network = Network::new();
        let mut listener = network.bind(&address).await.unwrap().limit(1);
        let bound = listener.address().clone();
        let (_first, _second) =
            (network.connect(&bound).await.unwrap(), network.connect(&bound).await.unwrap());
        let served = listener.accept().await;
        assert!(futures_util::poll!(std::pin::pin!(listener.accept())).is_pending());
        drop(served);
        listener.accept().await;
    }
}

#[tokio::test]
async fn names_belong_to_one_network() {
    let address = Address::mem("service");
    let network = Network::new();
    let _listener = network.bind(&address).await.unwrap();
    assert!(network.clone().bind(&address).await.is_err());
    assert!(Network::new().connect(&address).await.is_err());
}
