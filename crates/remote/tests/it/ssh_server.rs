//! A controllable SSH server.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use muster_remote::Target;
use russh::keys::{Algorithm, Certificate, HashAlg, PrivateKey, PublicKey};
use russh::server::{Auth, ChannelOpenHandle, Config, Handler, Msg, Session, VerifiedPublicKey};
use russh::{Channel, ChannelId, Sig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Credentials that the server accepts.
#[derive(Debug, Clone, Default)]
pub(crate) struct AcceptedCredentials {
    pub(crate) key: Option<PublicKey>,
    pub(crate) password: Option<String>,
    /// Authority of accepted user certificates.
    pub(crate) authority: Option<PublicKey>,
}

/// A running server, which stops at the end of the test.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) fingerprint: String,
    /// Number of login attempts.
    pub(crate) tries: watch::Sender<u32>,
    /// Credentials that the server currently accepts.
    pub(crate) believes: Arc<Mutex<AcceptedCredentials>>,
    /// Received signals and closed channels.
    pub(crate) told: Arc<Mutex<Vec<String>>>,
}

pub(crate) fn key() -> PrivateKey {
    PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).unwrap()
}

impl Server {
    pub(crate) async fn start(believes: AcceptedCredentials) -> Self {
        let host_key = key();
        let fingerprint = host_key.public_key().fingerprint(HashAlg::Sha256).to_string();
        let config =
            Config { keys: vec![host_key], auth_rejection_time: std::time::Duration::ZERO, ..Config::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, tries) = (listener.local_addr().unwrap(), watch::Sender::new(0));
        let told = Arc::<Mutex<Vec<String>>>::default();
        let believes = Arc::new(Mutex::new(believes));
        let believed = Arc::clone(&believes);
        let (config, counted, heard) = (Arc::new(config), tries.clone(), Arc::clone(&told));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tries, told) = (counted.clone(), Arc::clone(&heard));
                let login = Login { believes: Arc::clone(&believed), tries, told };
                let config = Arc::clone(&config);
                tokio::spawn(async move {
                    if let Ok(session) = russh::server::run_stream(config, stream, login).await {
                        let _ = session.await;
                    }
                });
            }
        });
        Self { address, fingerprint, tries, believes, told }
    }

    pub(crate) fn target(&self) -> Target {
        target(self.address)
    }
}

pub(crate) fn target(address: SocketAddr) -> Target {
    Target { machine: "vm-1".to_owned(), address: address.to_string(), username: "ci".to_owned(), ..Target::default() }
}

struct Login {
    believes: Arc<Mutex<AcceptedCredentials>>,
    tries: watch::Sender<u32>,
    told: Arc<Mutex<Vec<String>>>,
}

impl Login {
    fn answer(&self, yes: impl FnOnce(&AcceptedCredentials) -> bool) -> Result<Auth, russh::Error> {
        let yes = yes(&self.believes.lock().unwrap());
        self.tries.send_modify(|tries| *tries += 1);
        Ok(if yes { Auth::Accept } else { Auth::reject() })
    }
}

impl Handler for Login {
    type Error = russh::Error;

    async fn auth_publickey(&mut self, _: &str, key: VerifiedPublicKey<'_>) -> Result<Auth, russh::Error> {
        self.answer(|of| of.key.as_ref().is_some_and(|known| known.key_data() == key.public_key.key_data()))
    }

    async fn auth_password(&mut self, _: &str, password: &str) -> Result<Auth, russh::Error> {
        self.answer(|of| of.password.as_deref() == Some(password))
    }

    async fn auth_openssh_certificate(&mut self, user: &str, given: &Certificate) -> Result<Auth, russh::Error> {
        let signed = |known: &PublicKey| known.key_data() == given.signature_key();
        let is_for = given.valid_principals().iter().any(|principal| principal == user);
        self.answer(|of| is_for && of.authority.as_ref().is_some_and(signed))
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
        self.told.lock().unwrap().push(format!("to {host}:{port}"));
        // Dropping the reply refuses the channel.
        if let Ok(mut stream) = TcpStream::connect((host, u16::try_from(port).unwrap())).await {
            reply.accept().await;
            tokio::spawn(async move { tokio::io::copy_bidirectional(&mut channel.into_stream(), &mut stream).await });
        }
        Ok(())
    }

    async fn signal(&mut self, _: ChannelId, signal: Sig, _: &mut Session) -> Result<(), russh::Error> {
        self.told.lock().unwrap().push(format!("{signal:?}"));
        Ok(())
    }

    async fn channel_close(&mut self, _: ChannelId, _: &mut Session) -> Result<(), russh::Error> {
        self.told.lock().unwrap().push("close".to_owned());
        Ok(())
    }

    /// The command line determines how the command ends.
    async fn exec_request(&mut self, id: ChannelId, line: &[u8], session: &mut Session) -> Result<(), russh::Error> {
        session.channel_success(id)?;
        session.data(id, line.to_vec())?;
        match line {
            b"signal" => session.exit_signal_request(id, Sig::SEGV, false, "", "")?,
            b"silent" => {}
            b"waits" => return Ok(()),
            b"lost" => return Err(russh::Error::Disconnect),
            status => {
                let status = std::str::from_utf8(status).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
                session.exit_status_request(id, status)?;
            }
        }
        session.close(id)
    }
}
