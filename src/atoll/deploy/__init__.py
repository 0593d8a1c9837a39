"""Run federations between real machines: sites keep their data and states, a server coordinates them.

``transport`` carries requests and replies: ``protocol`` defines their form, ``base`` and ``flower`` send them, and
``requests`` waits for the replies of sites with time limits. ``site`` is the part of a site: ``worker`` receives
requests, ``participation`` carries them out and ``exchange_store`` keeps the results. ``server`` is the part of the
server: ``handshake`` collects the descriptions of the sites, ``backend`` runs clients at sites, and ``run`` conducts a
whole run. ``proxy`` is the only program that listens to other machines.

``federation_dir`` and ``site_folder`` are the folders of the two sides, ``pki`` makes their keys and certificates,
``supervisor`` keeps their processes alive, and ``export_sites`` makes sites from a simulated federation.
"""
