use muster_agent::{Options, serve};
use rustix::process::geteuid;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::sync::oneshot;

use crate::harness::{TIMEOUT, options};

#[tokio::test]
async fn agent_answers_only_the_user_that_it_was_started_for() {
    let own = geteuid().as_raw();
    for (only_user, answers) in [(None, true), (Some(own), true), (Some(own + 1), false)] {
        let dir = tempfile::tempdir().unwrap();
        let (ready, is_ready) = oneshot::channel();
        let options = Options { only_user, ready: Some(ready), ..options(dir.path()) };
        let (shutdown, socket) = (options.shutdown.clone(), options.socket.clone());
        let agent = tokio::spawn(serve(options));
        tokio::time::timeout(TIMEOUT, is_ready).await.unwrap().unwrap();
        // An HTTP/2 server sends its settings first.
        let mut byte = [0];
        let read = UnixStream::connect(socket).await.unwrap().read(&mut byte).await;
        assert_eq!(read.is_ok_and(|length| length == 1), answers, "{only_user:?}");
        shutdown.cancel();
        agent.await.unwrap().unwrap();
    }
}
