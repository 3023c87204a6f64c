//! Connections that break at any byte of a request or of its answer leave nothing behind.

use armature_e2e::suite::Suite;
use armature_e2e::wait_until;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A streamed request as it goes over the wire; its answer has a few thousand bytes.
fn request(host: &str) -> Vec<u8> {
    let body = r#"{"model": "sim", "prompt": "Hello", "max_tokens": 30, "stream": true}"#;
    format!(
        "POST /v1/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[tokio::test]
async fn at_any_byte_of_a_request_or_an_answer() {
    let suite = Suite::sim().await;
    let host = suite.client.base().trim_start_matches("http://");
    let request = request(host);
    let mut rng = StdRng::seed_from_u64(4);
    for _ in 0..100 {
        let mut connection = TcpStream::connect(host).await.unwrap();
        let sent = rng.random_range(0..=request.len());
        connection.write_all(&request[..sent]).await.unwrap();
        if sent == request.len() || rng.random() {
            connection.write_all(&request[sent..]).await.unwrap();
            let mut read = vec![0; rng.random_range(1..3000)];
            connection.read_exact(&mut read).await.unwrap();
            assert!(read.starts_with(&b"HTTP/1.1 200 OK"[..read.len().min(15)]));
        }
        if rng.random() {
            // Unread bytes make the end a reset instead of a farewell.
            connection.set_zero_linger().unwrap();
        }
    }
    wait_until("no connection is open", async || {
        suite.metric("armature_frontend_http_connections").await == 0.0
    })
    .await;
    suite.idle().await;
}
