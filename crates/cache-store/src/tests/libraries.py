# Prints what the libraries of Amazon and Google sign. Input: a JSON object on the command line.
import json
import sys

job = json.loads(sys.argv[1])
if job["store"] == "s3":
    from botocore.auth import S3SigV4QueryAuth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest(method=job["method"], url=job["url"], headers=job["headers"])
    request.context["timestamp"] = job["time"]
    auth = S3SigV4QueryAuth(Credentials(job["key"], job["secret"]), "s3", job["region"])
    print(auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request))
else:
    import datetime

    from google.cloud.storage._signing import generate_signed_url_v4
    from google.oauth2.service_account import Credentials

    account = {"client_email": job["key"], "private_key": job["secret"], "token_uri": "https://token.example"}
    print(
        generate_signed_url_v4(
            Credentials.from_service_account_info(account),
            job["path"],
            datetime.timedelta(seconds=job["expires"]),
            method=job["method"],
            headers=job["headers"],
            _request_timestamp=job["time"],
        )
    )
