"""Name the operations of sites at the SuperLink, and read the messages that sites push."""

from .private_names import load

_FLEET = "/v1/fleet/"
PUSH_MESSAGES = _FLEET + "push-messages"
STORING = frozenset({PUSH_MESSAGES, _FLEET + "push-object"})  # operations whose content the SuperLink stores
# The paths of the operations that sites need. Only the server may register nodes, and sites never fetch an app.
OPERATIONS = frozenset(
    _FLEET + name
    for name in (
        "activate-node", "deactivate-node", "send-node-heartbeat", "pull-messages", "push-messages", "push-object",
        "pull-object", "confirm-message-received",
    )
)  # fmt: skip
SERVER_NODE = 1  # the number under which messages reach the server
HEALTH = "/health"
PUBLIC_KEY_HEADER = "flwr-public-key"
HEADER_PREFIXES = ("flwr-", "x-flwr-")

LOST_CODES = frozenset({3, 4, 5, 8})  # error codes of messages and nodes that are gone, and of apps that crashed
STILL_CONNECTED = "[code: 2004]"  # the SuperLink refuses a node whose last connection has not expired


def are_replies(body: bytes) -> bool:
    """Return True if all messages of a push are replies of the sender to the server.

    Flower takes a message that replies to nothing for an order of the server, whoever sends it.
    """
    request = load("gate").PushMessagesRequest()
    try:
        request.ParseFromString(body)
    except Exception:  # The library has no public class for what it raises.
        return False
    told = [message.metadata for message in request.messages_list]
    return all(
        m.reply_to_message_id and m.src_node_id == request.node.node_id and m.dst_node_id == SERVER_NODE for m in told
    )
