//! A controllable SSH server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muster_remote::Target;
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, Sig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

#[derive(Debug, Clone, Default)]
pub(crate) struct AcceptedCredentials {
    pub(crate) key: Option<PublicKey>,
    pub(crate) password: Option<String>,
    /// Authority of accepted user certificates.
    pub(crate) authority: Option<PublicKey>,
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: String,
    pub(crate) tries: watch::Sender<u32>,
    /// Credentials that the server accepts. Changes apply to later logins.
    pub(crate) accepted: Arc<Mutex<AcceptedCredentials>>,
    /// Received signals, requested connections and closed channels.
    pub(crate) events: Arc<Mutex<Vec<String>>>,
}

pub(crate) fn key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap()
}

impl Server {
    pub(crate) async fn start(accepted: AcceptedCredentials) -> Self {
        let host_key = key();
        let fingerprint = host_key.public_key().fingerprint(HashAlg::Sha256).to_string();
        let config =
            Config { keys: vec![host_key], auth_rejection_time: std::time::Duration::ZERO, ..Config::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, tries) = (listener.local_addr().unwrap(), watch::Sender::new(0));
        let events = Arc::<Mutex<Vec<String>>>::default();
        let accepted = Arc::new(Mutex::new(accepted));
        let accepted_credentials = Arc::clone(&accepted);
        let (config, server_tries, server_events) = (Arc::new(config), tries.clone(), Arc::clone(&events));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tries, events) = (server_tries.clone(), Arc::clone(&server_events));
                let handler = LoginHandler { accepted: Arc::clone(&accepted_credentials), tries, events };
                let config = Arc::clone(&config);
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, handler).await {
                        let _ = session.await;
                    }
                });
            }
        });
        Self { address, fingerprint, tries, accepted, events }
    }

    pub(crate) fn target(&self) -> Target {
        target(self.address)
    }
}

pub(crate) fn target(address: SocketAddr) -> Target {
    Target { machine: "vm-1".to_owned(), address: address.to_string(), username: "ci".to_owned(), ..Target::default() }
}

struct LoginHandler {
    accepted: Arc<Mutex<AcceptedCredentials>>,
    tries: watch::Sender<u32>,
    events: Arc<Mutex<Vec<String>>>,
}

impl LoginHandler {
    fn respond(&self, is_accepted: impl FnOnce(&AcceptedCredentials) -> bool) -> Result<Auth, russh::Error> {
        let is_accepted = is_accepted(&self.accepted.lock().unwrap());
        self.tries.send_modify(|tries| *tries += 1);
        Ok(if is_accepted { Auth::Accept } else { Auth::reject() })
    }
}

impl Handler for LoginHandler {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        self.respond(|accepted| {
            accepted.key.as_ref().is_some_and(|known| known.key_data() == key.public_key.key_data())
        })
    }

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, russh::Error> {
        self.respond(|accepted| accepted.password.as_deref() == Some(password))
    }

    async fn auth_openssh_certificate(&mut self, user: &str, certificate: &Certificate) -> Result<Auth, russh::Error> {
        let has_signed = |known: &PublicKey| known.key_data() == certificate.signature_key();
        let is_for_user = certificate.valid_principals().iter().any(|principal| principal == user);
        self.respond(|accepted| is_for_user && accepted.authority.as_ref().is_some_and(has_signed))
    }

    async fn channel_open_session(
        &mut self,
        _: Channel<Msg>,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        reply.accept().await;
        Ok(())
    }

    async fn channel_open_direct_tcpip(
        &mut self,
        channel: Channel<Msg>,
        host: &str,
        port: u32,
        _: &str,
        _: u32,
        reply: ChannelOpenHandle,
        _: &mut Session,
    ) -> Result<(), russh::Error> {
        self.events.lock().unwrap().push(format!("to {host}:{port}"));
        // Dropping `reply` refuses the channel.
        if let Ok(mut stream) = TcpStream::connect((host, u16::try_from(port).unwrap())).await {
            reply.accept().await;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut stream).await });
        }
        Ok(())
    }

    async fn signal(&mut self, _: ChannelId, signal: Sig, _: &mut Session) -> Result<(), russh::Error> {
        self.events.lock().unwrap().push(format!("{signal:?}"));
        Ok(())
    }

    async fn channel_close(&mut self, _: ChannelId, _: &mut Session) -> Result<(), russh::Error> {
        self.events.lock().unwrap().push("close".to_owned());
        Ok(())
    }

    /// The command line determines how the command ends.
    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(id)?;
        session.data(id, line.to_vec())?;
        match line {
            b"signal" => session.exit_signal_request(id, Sig::SEGV, false, "", "")?,
            b"silent" => {}
            b"wait" => return Ok(()),
            b"lost" => return Err(russh::Error::Disconnect),
            status => {
                let status = std::str::from_utf8(status).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
                session.exit_status_request(id, status)?;
            }
        }
        session.close(id)
    }
}
