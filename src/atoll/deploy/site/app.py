"""Flower's client app: passes each message to the site's worker. Loads neither torch nor data."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from ..transport.flower import unwrapped, wrapped
from ..transport.protocol import call, error, pack

app = ClientApp()


@app.train()  # type: ignore[untyped-decorator, unused-ignore]
def pass_on(message: Message, context: Context) -> Message:
    """Return the worker's reply or an error code, never an exception, whose text would travel."""
    try:
        reply = call(str(context.node_config["worker"]), unwrapped(message.content))
    except Exception:
        reply = pack(error("worker"))
    return Message(wrapped(reply), reply_to=message)
