//! The programs are real, answer, freeze and come back empty on their ports.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use armature_test_backends::{Consul, Redis};

fn ask(port: u16, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_millis(500)))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = vec![0; 4096];
    let read = stream.read(&mut answer)?;
    answer.truncate(read);
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[test]
fn redis_answers_freezes_and_comes_back_empty() {
    let mut redis = Redis::start(&[]);
    assert_eq!(ask(redis.port(), "SET k v\r\n").unwrap(), "+OK\r\n");
    redis.freeze();
    assert_eq!(ask(redis.port(), "PING\r\n").unwrap_err().kind(), ErrorKind::WouldBlock);
    redis.thaw();
    assert_eq!(ask(redis.port(), "GET k\r\n").unwrap(), "$1\r\nv\r\n");
    redis.restart();
    assert_eq!(ask(redis.port(), "GET k\r\n").unwrap(), "$-1\r\n");
    redis.kill();
    assert_eq!(ask(redis.port(), "PING\r\n").unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn two_consul_agents_form_one_cluster_and_come_back_empty() {
    let mut server = Consul::start(&[]);
    let agent = Consul::join(&server, &[]);
    let members = ask(agent.port(), "GET /v1/catalog/nodes HTTP/1.0\r\n\r\n").unwrap();
    for node in [&server, &agent] {
        assert!(members.contains(&format!("node-{}", node.port())), "{members}");
    }
    let put = "PUT /v1/kv/k HTTP/1.0\r\nContent-Length: 1\r\n\r\nv";
    assert!(ask(server.port(), put).unwrap().contains("200 OK"));
    server.restart();
    assert!(ask(server.port(), "GET /v1/kv/k HTTP/1.0\r\n\r\n").unwrap().contains("404"));
}
