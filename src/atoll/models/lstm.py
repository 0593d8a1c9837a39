"""Build a bidirectional LSTM for sequences of word numbers."""

from torch import Tensor, nn

from .registry import Body, Shape, model


class BiLSTM(nn.Module):
    """Embedding, one bidirectional LSTM, a layer with ReLU at every step, the mean over time, and a last layer.

    Args:
        vocabulary: number of words.
        embedding: width of the embedding.
        hidden: width of the LSTM in each direction.
        dropout: rate of dropout before and after the LSTM.
        masked_mean: leave padding out of the mean. FedDW's network includes padding.
        padding: number of the padding word.
    """

    def __init__(
        self, vocabulary: int, embedding: int, hidden: int, dropout: float, masked_mean: bool, padding: int
    ) -> None:
        super().__init__()
        self.masked_mean = masked_mean
        self.padding = padding
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.drop1 = nn.Dropout(dropout)
        self.lstm = nn.LSTM(embedding, hidden, batch_first=True, bidirectional=True)
        self.drop2 = nn.Dropout(dropout)
        self.fc1 = nn.Linear(2 * hidden, hidden)
        self.fc2 = nn.Linear(hidden, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        steps, _ = self.lstm(self.drop1(self.embedding(tokens)))
        steps = self.fc1(self.drop2(steps)).relu()
        out: Tensor = self.fc2(self._mean(steps, tokens))
        return out

    def _mean(self, steps: Tensor, tokens: Tensor) -> Tensor:
        if not self.masked_mean:
            return steps.mean(1)
        words = (tokens != self.padding).to(steps.dtype).unsqueeze(-1)
        return (steps * words).sum(1) / words.sum(1).clamp(min=1)


@model("bilstm", "FedDW's bidirectional LSTM for IMDB reviews: embedding 128, hidden 128 each way", "text")
def bilstm(
    shape: Shape,
    *,
    vocabulary: int = 10_000,
    embedding: int = 128,
    hidden: int = 128,
    dropout: float = 0.2,
    masked_mean: bool = False,
    padding: int = 0,
) -> Body:
    return BiLSTM(vocabulary, embedding, hidden, dropout, masked_mean, padding), hidden
