"""Attack real uploads as an honest but curious server would.

The server knows the method, the downloads that it sent and the uploads that it received. For membership inference, it
also has the features of candidates. All attacks are simple arithmetic. Attacks that train models of their own are not
tried: a low value means that this attack fails, not that no attack succeeds.
"""
